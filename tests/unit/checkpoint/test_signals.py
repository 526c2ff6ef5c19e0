import signal
import threading

import pytest

from grpo.checkpoint.signals import Interrupted, StopRequest

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
