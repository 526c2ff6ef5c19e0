import contextlib
import math
import signal
import threading
import time

import pytest

from grpo.checkpoint.signals import Abandoned, Interrupted, StopRequest

NUMBERS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_is_noted_and_the_first_one_counts(number):
    with StopRequest() as stop:
        assert stop.requested is None
        signal.raise_signal(number)
        assert stop.requested == number.name
        signal.raise_signal(signal.SIGUSR1)
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested == number.name


def test_a_second_ctrl_c_interrupts_at_once():
    with StopRequest() as stop:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert stop.requested == "SIGTERM"


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_the_handlers_come_back(error):
    def mine(*_):
        pass

    previous = {number: signal.signal(number, mine) for number in NUMBERS}
    try:
        if error is None:
            with StopRequest():
                assert signal.getsignal(signal.SIGTERM) is not mine
        else:
            with pytest.raises(error), StopRequest():
                raise error
        assert all(signal.getsignal(number) is mine for number in NUMBERS)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_another_thread_is_refused():
    errors = []

    def enter():
        try:
            with StopRequest():
                pass
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join(10)
    assert "main thread" in errors[0]


@pytest.mark.parametrize("number", NUMBERS)
def test_before_there_is_anything_to_save_a_signal_interrupts(number):
    with StopRequest(at_once=True) as stop:
        with pytest.raises(Interrupted, match=number.name):
            signal.raise_signal(number)
        # As if a library had swallowed it in an import.
        with pytest.raises(Interrupted, match=number.name):
            stop.defer()


def test_once_deferred_a_signal_is_noted():
    with StopRequest(at_once=True) as stop:
        stop.defer()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested == "SIGTERM"


def test_deferring_takes_a_signal_back_from_a_library():
    with StopRequest(at_once=True) as stop:
        signal.signal(signal.SIGTERM, lambda *_: pytest.fail("the library's handler ran"))
        stop.defer()
        signal.raise_signal(signal.SIGTERM)
        assert stop.requested == "SIGTERM"


class Latest:
    """The instant by which a block must be left, as a test changes it."""

    def __init__(self, instant=math.inf):
        self.instant = instant

    def __call__(self):
        return self.instant


def wait_for(condition):
    ends = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < ends


def given_up(stop, latest, block):
    """Whether a block is given up, and raises nothing else."""
    try:
        with stop.abandonable(latest):
            block()
    except Abandoned:
        return True
    return False


def test_a_block_is_given_up_at_its_instant():
    with StopRequest() as stop:
        assert given_up(stop, Latest(time.monotonic() + 0.05), lambda: wait_for(lambda: False))
        assert stop.requested is None


def test_a_signal_makes_the_instant_known():
    latest, reached = Latest(), []

    def block():
        signal.raise_signal(signal.SIGUSR1)  # still infinite: it goes on
        reached.append(stop.requested)
        latest.instant = time.monotonic()
        signal.raise_signal(signal.SIGUSR1)
        reached.append("not here")

    with StopRequest() as stop:
        assert given_up(stop, latest, block)
    assert reached == ["SIGUSR1"]


def test_a_block_that_ends_too_late_or_whose_exception_was_swallowed_is_given_up_all_the_same():
    latest = Latest()

    def swallowing():
        latest.instant = time.monotonic()
        with contextlib.suppress(BaseException):  # what a library may do
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # clean-up code is not interrupted a second time

    with StopRequest() as stop:
        assert given_up(stop, latest, lambda: setattr(latest, "instant", time.monotonic() - 1))
        latest.instant = math.inf
        assert given_up(stop, latest, swallowing)
        latest.instant = math.inf
        assert not given_up(stop, latest, lambda: signal.raise_signal(signal.SIGTERM))


def test_an_interrupt_of_a_library_for_ours_is_ours():
    latest = Latest(time.monotonic() + 60)

    def block():
        latest.instant = 0
        try:
            signal.raise_signal(signal.SIGTERM)
        except Abandoned:
            raise KeyboardInterrupt from None

    with StopRequest() as stop:
        assert given_up(stop, latest, block)


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_alarm_of_others_comes_back(error):
    def mine(*_):
        pass

    previous = signal.signal(signal.SIGALRM, mine)
    try:
        with StopRequest() as stop, contextlib.suppress(ValueError), stop.abandonable(Latest(time.monotonic() + 60)):
            assert signal.getsignal(signal.SIGALRM) is not mine
            if error is not None:
                raise error
        assert signal.getsignal(signal.SIGALRM) is mine
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    finally:
        signal.signal(signal.SIGALRM, previous)


def test_another_thread_gives_up_the_block_that_the_main_thread_waits_in():
    with StopRequest() as stop:
        entered, never = threading.Event(), threading.Event()

        def give_up():
            entered.wait(20)
            stop.give_up()

        threading.Thread(target=give_up).start()
        assert given_up(stop, Latest(), lambda: (entered.set(), never.wait(20), pytest.fail("not given up")))
        assert given_up(stop, Latest(), lambda: pytest.fail("a later block begins"))
        assert stop.requested is None


def test_a_block_is_given_up_from_another_thread_only_while_it_lasts():
    """Where no one handles SIGALRM it would end the process."""
    reached = []

    def fails():
        reached.append("in")
        raise ValueError

    with StopRequest() as stop:
        with pytest.raises(ValueError), stop.abandonable(Latest()):  # noqa: PT011
            fails()
        thread = threading.Thread(target=stop.give_up)
        thread.start()
        thread.join(20)
        assert reached == ["in"]


def test_a_block_that_is_just_beginning_is_given_up_and_not_the_process(monkeypatch):
    """Until SIGALRM is handled it would end the process."""
    real = signal.signal

    def install(number, handler):
        if number == signal.SIGALRM and callable(handler):
            thread = threading.Thread(target=stop.give_up)
            thread.start()
            thread.join(20)
        return real(number, handler)

    with StopRequest() as stop:
        monkeypatch.setattr(signal, "signal", install)
        assert given_up(stop, Latest(), lambda: pytest.fail("the block begins"))
        monkeypatch.undo()


def test_what_is_given_up_from_another_thread_ends_whole():
    done = []

    def block():
        with stop.undivided():
            thread = threading.Thread(target=stop.give_up)
            thread.start()
            thread.join(20)
            done.append("whole")
        done.append("not here")

    with StopRequest() as stop:
        assert given_up(stop, Latest(), block)
    assert done == ["whole"]


def test_what_belongs_together_happens_whole():
    done = []

    def whole():
        with stop.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("whole")

    with StopRequest(at_once=True) as stop:
        with pytest.raises(Interrupted, match="SIGTERM"):
            whole()
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGTERM)
    assert done == ["whole"]
    with StopRequest() as stop, stop.held():
        signal.raise_signal(signal.SIGTERM)


def test_a_run_that_has_ended_ignores_signals():
    previous = {number: signal.getsignal(number) for number in NUMBERS}
    try:
        with StopRequest() as stop:
            stop.ignore()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.raise_signal(number)
        assert stop.requested is None
        assert signal.getsignal(signal.SIGINT) is previous[signal.SIGINT]
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def test_whose_interrupt_it_is():
    with StopRequest(at_once=True) as stop:
        with pytest.raises(Interrupted) as caught:
            signal.raise_signal(signal.SIGTERM)
        assert stop.raised(caught.value) == "SIGTERM"
        assert stop.raised(KeyboardInterrupt()) == "SIGTERM"  # Ray's for ours
    assert StopRequest().raised(KeyboardInterrupt()) is None
