import subprocess
import sys

PROGRAM = """
{before}
from grpo.hub.offline import go_offline
go_offline()
import huggingface_hub, os
from huggingface_hub.errors import OfflineModeIsEnabled
assert os.environ["HF_DATASETS_OFFLINE"] == "1"
try:
    huggingface_hub.HfApi(endpoint="http://127.0.0.1:9").model_info("org/m")
except OfflineModeIsEnabled:
    print("refused")
"""


def refused(before):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "refused"


def test_no_request_leaves_the_process():
    assert refused("")


def test_nor_where_the_library_was_loaded_before():
    assert refused("import huggingface_hub.constants")
