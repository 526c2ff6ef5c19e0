import pytest

from grpo.models.peak import PEAKS, datasheet_peak


@pytest.mark.parametrize(("name", "tflops"), [
    ("NVIDIA H200", 989.4), ("NVIDIA H200 NVL", 835.5), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H100 PCIe", 756.5),
    ("NVIDIA GH200 480GB", 989.4), ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA B200", 2250.0), ("NVIDIA L40S", 362.05),
])  # fmt: skip
def test_names_as_cuda_gives_them(name, tflops):
    assert datasheet_peak(name).tflops == tflops


@pytest.mark.parametrize("name", ["cpu", "NVIDIA GeForce RTX 4090", "AMD Instinct MI300X"])
def test_other_devices_have_none(name):
    assert datasheet_peak(name) is None


def test_no_entry_hides_a_later_one_and_each_names_its_source():
    for peak in PEAKS:
        assert datasheet_peak(peak.name) == peak
        assert "datasheet" in peak.source
