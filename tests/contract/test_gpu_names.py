"""Which speed class a product name has: names as drivers, vGPU managers and MIG write them."""

import pytest

from nvfp4_suite.contract.gpu_names import (
    DATA_CENTER,
    GEFORCE,
    H20,
    ORIN,
    RTX_PRO,
    SAFE,
    class_of_name,
    has_known_name,
    speed_class,
)
from nvfp4_suite.contract.gpus import CATALOG, PORTABLE, Gpu, architecture

# (class, its rho, names). FreeToken#723: "GeForce RTX 30/40/50 -> 2, RTX A / RTX Ada / RTX PRO / A10 / A40 / L4 /
# L40S -> 4, A100 / H100 -> 16, H20 -> 3.4"; and cards of the same rates by their data sheets.
NAMES = [
    (
        GEFORCE,
        2,
        """
        NVIDIA GeForce RTX 2050
        NVIDIA GeForce MX570
        NVIDIA GeForce RTX 3050
        NVIDIA GeForce RTX 3050 Ti Laptop GPU
        NVIDIA GeForce RTX 3050 6GB Laptop GPU
        NVIDIA GeForce RTX 3060
        NVIDIA GeForce RTX 3060 Ti
        NVIDIA GeForce RTX 3060 Laptop GPU
        NVIDIA GeForce RTX 3070
        NVIDIA GeForce RTX 3070 Ti
        NVIDIA GeForce RTX 3080
        NVIDIA GeForce RTX 3080 Ti
        NVIDIA GeForce RTX 3080 Ti Laptop GPU
        NVIDIA GeForce RTX 3090
        NVIDIA GeForce RTX 3090 Ti
        GeForce RTX 3090
        NVIDIA GeForce RTX 4050 Laptop GPU
        NVIDIA GeForce RTX 4060
        NVIDIA GeForce RTX 4060 Ti
        NVIDIA GeForce RTX 4070
        NVIDIA GeForce RTX 4070 SUPER
        NVIDIA GeForce RTX 4070 Ti SUPER
        NVIDIA GeForce RTX 4080
        NVIDIA GeForce RTX 4080 SUPER
        NVIDIA GeForce RTX 4080 Laptop GPU
        NVIDIA GeForce RTX 4090
        NVIDIA GeForce RTX 4090 D
        NVIDIA GeForce RTX 4090 Laptop GPU
        NVIDIA RTX 4090
        NVIDIA GeForce RTX 5050
        NVIDIA GeForce RTX 5060
        NVIDIA GeForce RTX 5060 Ti
        NVIDIA GeForce RTX 5070
        NVIDIA GeForce RTX 5070 Ti
        NVIDIA GeForce RTX 5070 Ti Laptop GPU
        NVIDIA GeForce RTX 5080
        NVIDIA GeForce RTX 5080 Laptop GPU
        NVIDIA GeForce RTX 5090
        NVIDIA GeForce RTX 5090 D
        NVIDIA GeForce RTX 5090 D v2
        NVIDIA GeForce RTX 5090 Laptop GPU
        NVIDIA RTX 5090
        NVIDIA A10G
        NVIDIA L20
        NVIDIA L40
        NVIDIA L40-48Q
        """,
    ),
    (
        RTX_PRO,
        4,
        """
        NVIDIA RTX A400
        NVIDIA RTX A500 Laptop GPU
        NVIDIA RTX A1000
        NVIDIA RTX A1000 6GB Laptop GPU
        NVIDIA RTX A2000
        NVIDIA RTX A2000 12GB
        NVIDIA RTX A3000 Laptop GPU
        NVIDIA RTX A4000
        NVIDIA RTX A4500
        NVIDIA RTX A5000
        NVIDIA RTX A5500
        NVIDIA RTX A5500 Laptop GPU
        NVIDIA RTX A6000
        NVIDIA RTXA6000-48Q
        RTX A6000
        NVIDIA RTX 500 Ada Generation Laptop GPU
        NVIDIA RTX 1000 Ada Generation Laptop GPU
        NVIDIA RTX 2000 Ada Generation
        NVIDIA RTX 3500 Ada Generation Laptop GPU
        NVIDIA RTX 4000 Ada Generation
        NVIDIA RTX 4000 SFF Ada Generation
        NVIDIA RTX 4500 Ada Generation
        NVIDIA RTX 5000 Ada Generation
        NVIDIA RTX 5000 Ada Generation Laptop GPU
        NVIDIA RTX 5880 Ada Generation
        NVIDIA RTX 6000 Ada Generation
        NVIDIA RTX6000-Ada-48Q
        NVIDIA RTX PRO 500 Blackwell Generation Laptop GPU
        NVIDIA RTX PRO 2000 Blackwell
        NVIDIA RTX PRO 4000 Blackwell
        NVIDIA RTX PRO 4000 Blackwell SFF Edition
        NVIDIA RTX PRO 4500 Blackwell
        NVIDIA RTX PRO 5000 Blackwell
        NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU
        NVIDIA RTX PRO 6000 Blackwell Workstation Edition
        NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition
        NVIDIA RTX PRO 6000 Blackwell Server Edition
        NVIDIA RTX PRO 6000 Blackwell Server Edition MIG 1g.24gb
        NVIDIA RTX Pro 6000 Blackwell DC-48Q
        NVIDIA A2
        NVIDIA A10
        NVIDIA A10-24Q
        NVIDIA A16
        NVIDIA A16-16Q
        NVIDIA A40
        NVIDIA A40-48Q
        NVIDIA L2
        NVIDIA L4
        NVIDIA L4-24Q
        NVIDIA L40S
        NVIDIA L40S-48Q
        NVIDIA GB10
        """,
    ),
    (
        DATA_CENTER,
        16,
        """
        NVIDIA A30
        NVIDIA A30 MIG 1g.6gb
        NVIDIA A100-SXM4-40GB
        NVIDIA A100-SXM4-40GB MIG 1g.5gb
        NVIDIA A100-SXM4-80GB
        NVIDIA A100 80GB PCIe
        NVIDIA A100-PCIE-40GB
        A100-SXM4-40GB
        NVIDIA A100X
        GRID A100-40C
        GRID A100D-80C
        GRID A100X-40C
        GRID A100DX-80C
        GRID A800DX-80C
        NVIDIA A800D-80C
        NVIDIA H800XM-80C
        NVIDIA H200X-141C
        NVIDIA B200X-180C
        GRID A100-4-20C
        NVIDIA A800-SXM4-80GB
        NVIDIA A800 40GB Active
        NVIDIA H100 80GB HBM3
        NVIDIA H100 80GB HBM3 MIG 1g.10gb
        NVIDIA H100 PCIe
        NVIDIA H100 NVL
        NVIDIA H100XM-80C
        NVIDIA H100L-94C
        NVIDIA H800
        NVIDIA H800 PCIe
        NVIDIA H200
        NVIDIA H200 NVL
        NVIDIA H200 MIG 1g.18gb
        GRID H200-24Q
        NVIDIA GH200 480GB
        NVIDIA GH200 144G HBM3e
        NVIDIA B100
        NVIDIA B200
        NVIDIA GB200
        NVIDIA B300 SXM6 AC
        NVIDIA GB300
        NVIDIA Thor
        """,
    ),
    (H20, 3.4, "NVIDIA H20\nNVIDIA H20-3e\nNVIDIA H20-96C\nNVIDIA H20X-141C\nNVIDIA H20 MIG 1g.12gb"),
    (ORIN, 8, "Orin\nOrin (nvgpu)\nNVIDIA Jetson AGX Orin"),
]
PRODUCTS = [(name.strip(), found) for found, _, names in NAMES for name in names.strip().splitlines()]
UNKNOWN = [
    "",
    "NVIDIA X1",
    "GRID V7-8Q",
    "MIG 1g.10gb",
    "NVIDIA Graphics Device",
    "NVIDIA PG506-230",
    "NVIDIA H200000",
    "NVIDIA H20XYZ",
    "NVIDIA A100Q",
    "NVIDIA A100DXM",
]


def test_the_table_holds_as_many_products_as_it_should():
    assert len(dict(PRODUCTS)) == len(PRODUCTS) >= 80


@pytest.mark.parametrize(("found", "rho"), [row[:2] for row in NAMES], ids=lambda value: getattr(value, "name", None))
def test_a_class_has_the_stated_rho(found, rho):
    assert found.rho == rho


@pytest.mark.parametrize(("name", "found"), PRODUCTS, ids=lambda value: getattr(value, "name", None))
def test_a_product_has_its_class(name, found):
    assert class_of_name(name) == found


@pytest.mark.parametrize("name", UNKNOWN)
@pytest.mark.parametrize("capability", [(8, 0), (9, 0), (12, 0)])
def test_an_unknown_name_takes_the_safe_class_and_keeps_its_architecture(name, capability):
    """FreeToken#723: "An unknown name logs a warning and uses 4"."""
    gpu = Gpu(name, capability)
    assert not has_known_name(gpu)
    assert speed_class(gpu) == SAFE
    assert SAFE.rho == 4
    assert architecture(gpu) == architecture(Gpu("any", capability))


def test_every_card_of_the_catalog_has_a_class():
    assert [gpu.name for gpu in CATALOG if not has_known_name(gpu)] == []


@pytest.mark.parametrize("gpu", [PORTABLE, Gpu("NVIDIA H100", None, "hip", "gfx942")], ids=lambda gpu: gpu.name)
def test_no_particular_gpu_and_other_vendors_take_the_safe_class(gpu):
    assert speed_class(gpu) == SAFE


def test_two_cards_of_one_process_each_have_their_own_class_every_time():
    cards = [Gpu("NVIDIA A100-SXM4-80GB", (8, 0)), Gpu("NVIDIA GeForce RTX 4090", (8, 9))]
    assert [speed_class(gpu) for gpu in cards * 3] == [DATA_CENTER, GEFORCE] * 3
