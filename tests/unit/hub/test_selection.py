from grpo.hub.selection import wanted_files

MODEL = [
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "merges.txt",
    "chat_template.jinja", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
    "model.safetensors.index.json", "LICENSE", "README.md", "USE_POLICY.md",
]  # fmt: skip
REFUSED = [
    "pytorch_model.bin", "model.pt", "x.pth", "x.pkl", "modeling.py", "readme.py", "consolidated.safetensors", "x.gguf",
    "original/model.safetensors", "onnx/config.json", ".gitattributes", "args.bin", "tf_model.h5", "flax.msgpack",
]  # fmt: skip


def sizes(*names):
    return {name: i + 1 for i, name in enumerate(names)}


def test_model_is_safetensors_configuration_tokenizer_and_documents():
    assert wanted_files(sizes(*MODEL, *REFUSED), "model") == sizes(*MODEL)


def test_tokenizer_has_no_weights():
    wanted = wanted_files(sizes(*MODEL, *REFUSED), "tokenizer")
    assert set(wanted) == {name for name in MODEL if "safetensors" not in name}


def test_unusual_weight_names_are_taken_where_there_are_no_others():
    assert set(wanted_files(sizes("config.json", "consolidated.safetensors"), "model")) == {
        "config.json",
        "consolidated.safetensors",
    }


def test_pickled_weights_alone_are_nothing():
    assert wanted_files(sizes("config.json", "pytorch_model.bin"), "model") == {}
    assert wanted_files(sizes("model.safetensors"), "model") == {}


def test_dataset_is_data_files_without_code():
    data = ["data/train-00000.parquet", "a/test.jsonl.gz", "x.CSV", "README.md", "LICENSE"]
    refused = ["build.py", "x.pkl", "x.jsonl.pkl", ".gitattributes", "data/.hidden.json", "archive.zip", "x.pt"]
    assert set(wanted_files(sizes(*data, *refused), "dataset")) == set(data)
    assert wanted_files(sizes("README.md", "build.py"), "dataset") == {}
