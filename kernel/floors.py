"""No call of the kernel can be faster than this: three lower bounds, and the peaks of a GPU that they are made of.

Pure arithmetic; imports no torch. What is not known of a GPU is None, and so is every bound made of it.

The bounds, of one call over B rows with H heads and T tokens a row in all pools:
    memory           B × T × 584 bytes ÷ peak bandwidth. Only what is gathered: queries, lists and outputs stay in L2.
    dequantisation   B × T × 448 e4m3 values ÷ (conversions a clock a multiprocessor × multiprocessors × clock): each
                     value converted once, by the conversion instruction. A kernel that converts for every block of
                     heads anew pays it that many times; one that decodes the bits with integer instructions does
                     not use these instructions and is not bound by it.
    tensor           B × H × T × 512 × 4 FLOPs (a multiplication and an addition, for QK and for PV) ÷ peak of bf16

Source: bandwidth is 2 × memory clock × bus width, as the driver tells them (2: double data rate, in HBM and GDDR);
where it does not, NVIDIA's data sheet of the product. bf16 FLOPs a clock a multiprocessor: the data sheets' dense
peaks: H100 SXM 989.4e12 ÷ (132 × 1.83 GHz) = 4096, A100 312e12 ÷ (108 × 1.41 GHz) = 2048; the peak is that at the
device's own multiprocessors and highest clock, so it lies above the data sheet's where the clock goes higher.
Conversions from e4m3: 64 a clock a multiprocessor on Hopper, as counted in FlashMLA's
docs/20250929-hopper-fp8-sparse-deep-dive.md from NVIDIA's table of native instructions (its first step alone; the
three more steps there are one way to go on to bf16, not the only one). A100 has no such instruction.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

BYTES_A_TOKEN = 584  # 576 of values and 8 of scales
E4M3_A_TOKEN = 448
HEAD_DIM = 512

FLOPS_A_CLOCK = {"H100": 4096, "H200": 4096, "H800": 4096, "GH200": 4096, "A100": 2048, "A800": 2048}
"""Dense bf16 FLOPs with fp32 sums, a clock a multiprocessor, by the product's name as a word of the device's name."""
CONVERSIONS_A_CLOCK = {"H100": 64, "H200": 64, "H800": 64, "GH200": 64}
"""Values from e4m3 to 16 bits, a clock a multiprocessor."""
DATA_SHEET_BYTES_PER_S = {
    "NVIDIA H200": 4.8e12,
    "NVIDIA H100 80GB HBM3": 3.35e12,
    "NVIDIA H100 PCIe": 2.0e12,
    "NVIDIA A100-SXM4-40GB": 1.555e12,
    "NVIDIA A100-SXM4-80GB": 2.039e12,
    "NVIDIA A100-PCIE-40GB": 1.555e12,
    "NVIDIA A100 80GB PCIe": 1.935e12,
}


@dataclass(frozen=True, kw_only=True)
class Peaks:
    """What a GPU can do at most; None where that is not known.

    Attributes:
        bytes_per_s: of its memory.
        bandwidth_source: ``driver`` or ``data sheet``.
        flops_per_s: dense bf16 products with fp32 sums.
        conversions_per_s: values from e4m3 to 16 bits, by the conversion instruction.
    """

    bytes_per_s: float | None = None
    bandwidth_source: str | None = None
    flops_per_s: float | None = None
    conversions_per_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Floors:
    """Lower bounds of one call in µs; None where the peak is not known."""

    memory: float | None
    dequantisation: float | None
    tensor: float | None

    @property
    def largest(self) -> tuple[str, float] | None:
        """Name and µs of the largest that is known: still a lower bound where others are not."""
        known = [(name, us) for name, us in vars(self).items() if us is not None]
        return max(known, key=lambda floor: floor[1], default=None)


def peaks_of(properties: Any) -> Peaks:
    """Peaks of a device, from what ``torch.cuda.get_device_properties`` gives. Of a MIG slice nothing is known."""
    words = re.split(r"[^A-Za-z0-9]+", properties.name)
    if "MIG" in words:
        return Peaks()
    bandwidth, source = _bandwidth(properties)
    clock_khz = getattr(properties, "clock_rate", None) or None
    clocks_per_s = None if clock_khz is None else properties.multi_processor_count * clock_khz * 1e3

    def peak(a_clock: dict[str, int]) -> float | None:
        each = next((a_clock[word] for word in words if word in a_clock), None)
        return None if each is None or clocks_per_s is None else each * clocks_per_s

    return Peaks(
        bytes_per_s=bandwidth,
        bandwidth_source=source,
        flops_per_s=peak(FLOPS_A_CLOCK),
        conversions_per_s=peak(CONVERSIONS_A_CLOCK),
    )


def _bandwidth(properties: Any) -> tuple[float | None, str | None]:
    clock_khz, width_bits = (getattr(properties, name, None) for name in ("memory_clock_rate", "memory_bus_width"))
    if clock_khz and width_bits:
        return 2 * clock_khz * 1e3 * width_bits / 8, "driver"
    known = DATA_SHEET_BYTES_PER_S.get(properties.name)
    return known, None if known is None else "data sheet"


def floors_of(peaks: Peaks, *, n_rows: int, n_heads: int, n_tokens: int) -> Floors:
    """The three bounds of a call; ``n_tokens``: of one row, in all pools."""
    n_gathered = n_rows * n_tokens
    return Floors(
        memory=_us(n_gathered * BYTES_A_TOKEN, peaks.bytes_per_s),
        dequantisation=_us(n_gathered * E4M3_A_TOKEN, peaks.conversions_per_s),
        tensor=_us(n_gathered * n_heads * HEAD_DIM * 4, peaks.flops_per_s),
    )


def _us(amount: float, peak_per_s: float | None) -> float | None:
    return None if peak_per_s is None else amount / peak_per_s * 1e6
