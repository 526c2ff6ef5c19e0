"""A program with a group of two ranks: says where they are, works on request, and hangs until it is killed.

Lines of standard input: `reduce` (answered with the result), `hang`, `end`.
"""

import json
import sys

from grpo.workers.groups.ray_group import RayGroup
from grpo.workers.groups.ray_session import RaySession
from grpo.workers.groups.reservation import Reservation
from tests.support.group_workers import Ranked


def say(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def main() -> None:
    with (
        RaySession(cpus=2) as session,
        Reservation(session, 2) as reservation,
        RayGroup(Ranked, ["gloo"], reservation=reservation, deadline_s=200.0) as group,
    ):
        seen = group.call_one(0, "where")
        say(pids=[place.pid for place in group.places], port=seen["MASTER_PORT"], folder=str(session.log_folder()))
        for line in sys.stdin:
            if line == "end\n":
                break
            say(hanging=True) if line == "hang\n" else None
            say(result=group.call_all("hang_at" if line == "hang\n" else "all_reduce", 1))


if __name__ == "__main__":
    main()
