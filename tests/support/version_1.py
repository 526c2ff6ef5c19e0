"""Checkpoints as the first version of the format had them: one process, one file a tensor."""

import hashlib
import json

from grpo.checkpoint.manifest import canonical


def as_version_1(path):
    """Rewrite the manifest of a checkpoint of one process as the first version wrote it."""
    body = json.loads((path / "manifest.json").read_bytes())
    body.pop("sha256")
    tensors = body["tensors"]
    for entry in tensors.values():
        owner = tensors[entry["tied_to"]] if entry["tied_to"] else entry
        entry["file"] = owner["pieces"][0]["file"]
    for entry in tensors.values():
        del entry["pieces"]
    body["schema_version"] = 1
    digest = hashlib.sha256(canonical(body)).hexdigest()
    (path / "manifest.json").write_text(json.dumps({"sha256": digest, **body}))
