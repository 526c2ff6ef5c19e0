"""Which rank is named, and why, from what is known when a call has failed."""

import pytest

from grpo.errors import GenerationError, WorkerError
from grpo.workers.groups.failures import Absence, Death, Situation, absences, death_reason
from grpo.workers.groups.rank_host import Diagnosis, Failure, Where

WORLD, PAIR, OTHER = ("0", (0, 1, 2, 3)), ("1", (0, 1)), ("1", (2, 3))
PLACES = {rank: Where(100 + rank, f"host{rank // 2}", "id", f"10.0.0.{rank // 2}", (), 3) for rank in range(4)}
OWN = Failure("ValueError: bad", "Traceback of mine\n", in_collective=False, error=ValueError("bad"))
FOLLOWED = Failure("RuntimeError: gloo", "Traceback of another\n", in_collective=True, error=RuntimeError("gloo"))


def situation(failures=(), unanswered=(), diagnoses=()):
    return Situation("Policy", "train", PLACES, dict(failures), unanswered, dict(diagnoses), 7.0)


def at(stacks="", **collectives):
    groups = {"world": WORLD, "pair": PAIR, "other": OTHER}
    return Diagnosis(stacks, {groups[name]: count for name, count in collectives.items()})


def test_ranks_that_issued_fewer_collectives_were_away():
    diagnoses = {0: at(world=4, pair=9), 1: at(world=4, pair=9), 2: at(world=3, other=2), 3: at(world=4, other=2)}
    assert absences(diagnoses) == [Absence("0", (2,), 3, (0, 1, 3), 4)]
    assert absences({0: at(pair=1), 1: at(pair=1), 2: at(other=5), 3: at(other=5)}) == []
    assert absences({}) == []


def test_of_a_group_with_the_same_name_only_its_own_ranks_are_compared():
    (absence,) = absences({0: at(pair=1), 1: at(pair=1), 2: at(other=5), 3: at(other=4)})
    assert (absence.ranks, absence.waiting) == ((3,), (2,))
    assert str(absence) == (
        "rank 3 did not take part in collective 5 of process group 1 (issued 4), for which rank 2 waited"
    )


def test_an_own_exception_names_its_rank_node_and_traceback():
    error = situation({3: OWN}).error()
    assert isinstance(error, WorkerError)
    assert (error.rank, error.node, error.exit_code) == (3, "10.0.0.1", 1)
    assert str(error) == (
        "Policy rank 3 on node 10.0.0.1 (host1, process 103): train raised ValueError: bad\nTraceback of mine"
    )
    assert error.__cause__ is OWN.error


def test_an_error_for_the_user_needs_no_traceback():
    refusal = Failure("GenerationError: no", "Traceback", in_collective=False, error=GenerationError("no"))
    assert str(situation({1: refusal}).error()).endswith("train raised GenerationError: no")


@pytest.mark.parametrize("cause", [OWN, Death("killed", "")])
def test_a_failure_in_a_collective_is_not_the_cause_if_there_is_another(cause):
    assert situation({0: FOLLOWED, 2: cause, 1: FOLLOWED}).error().rank == 2


def test_of_failures_known_at_a_time_a_death_is_the_cause_and_the_others_are_told():
    error = situation({0: OWN, 1: FOLLOWED, 3: Death("killed", "")}).error()
    assert error.rank == 3
    assert str(error).endswith("died during train: killed\nand rank 0 raised ValueError: bad")


def test_ranks_that_fail_alike_are_not_all_told():
    places = {rank: PLACES[rank % 4] for rank in range(8)}
    error = Situation("Policy", "train", places, dict.fromkeys(range(8), OWN), (), {}, 7.0).error()
    assert error.rank == 0
    assert str(error).endswith("and " + "; ".join(f"rank {rank} raised ValueError: bad" for rank in (1, 2, 3)) + " ...")


def test_a_death_is_told_with_its_last_words():
    error = situation({1: Death("connection lost", "Fatal Python error\n")}).error()
    assert "rank 1 on node 10.0.0.0 (host0, process 101) died during train: connection lost\nFatal" in str(error)


def test_a_failed_collective_names_the_rank_that_was_away():
    diagnoses = {0: at(world=2), 1: at(world=1), 2: at(world=2), 3: at(world=2)}
    error = situation({0: FOLLOWED, 2: FOLLOWED, 3: FOLLOWED}, diagnoses=diagnoses).error()
    assert error.rank == 1
    assert "rank 1 did not take part in collective 2" in str(error)
    assert "it has left train" in str(error)
    assert "then raised RuntimeError: gloo" in str(error)


def test_a_failed_collective_in_which_all_took_part_names_the_first_that_failed():
    diagnoses = {rank: at(world=2) for rank in range(4)}
    error = situation({2: FOLLOWED, 0: FOLLOWED}, diagnoses=diagnoses).error()
    assert error.rank == 2
    assert "Traceback of another" in str(error)


def test_a_hang_names_who_has_not_answered_and_shows_their_stacks():
    error = situation(unanswered=(1, 3), diagnoses={1: at("stack of one"), 0: at()}).error()
    assert error.rank == 1
    text = str(error)
    assert "train did not return within 7 s; no answer from ranks 1, 3 of 4" in text
    assert "stacks of Policy rank 1 on node 10.0.0.0 (host0, process 101):\nstack of one" in text
    assert "stacks of Policy rank 3 on node 10.0.0.1 (host1, process 103): it does not answer that either" in text
    assert "cluster.worker_timeout_s" in text


def test_a_hang_in_a_collective_names_the_rank_that_is_elsewhere():
    diagnoses = {0: at("in all_reduce", world=5), 1: at("in a lock", world=4), 2: at(world=5), 3: at(world=5)}
    error = situation(unanswered=(0, 1, 2, 3), diagnoses=diagnoses).error()
    assert error.rank == 1
    assert "rank 1 did not take part in collective 5" in str(error)
    assert "it is elsewhere" in str(error)
    assert "in a lock" in str(error)


@pytest.mark.parametrize("waiting_at", ["grpo/refit/channel.py", "grpo/refit/broadcast.py"])
def test_a_hang_while_waiting_for_another_group_may_be_that_groups(waiting_at):
    stack = f'File "/env/{waiting_at}", line 9 in receive'
    assert situation(unanswered=(1,), diagnoses={1: at(stack)}).error().follows
    assert not situation(unanswered=(1,), diagnoses={1: at("in load_weights")}).error().follows
    assert not situation(unanswered=(1,)).error().follows


def test_a_rank_without_a_place_is_named_by_its_number():
    places = dict.fromkeys(range(2))
    error = Situation("Policy", "start", places, {}, (1,), {}, 3.0).error()
    assert (error.rank, error.node) == (1, "unknown")
    assert str(error).startswith("Policy rank 1: start did not return within 3 s")


def test_ray_messages_are_cut_to_what_they_say():
    told = "The actor died.\n\tpid: 3\nWorker exit type: SYSTEM_ERROR Worker exit detail: End of file."
    assert (
        death_reason(told + " If the process was killed by the kernel OOM killer (verifiable by ...") == "End of file."
    )
    assert death_reason(" something else ") == "something else"
