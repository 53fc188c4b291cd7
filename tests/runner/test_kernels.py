"""The catalogue of kernel names: every kernel of twelve NCCL builds, the other libraries, and what is no collective."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import yaml

from runner import kernels
from runner.errors import UserError
from runner.kernels import SYMMETRIC, Kernel, classify, load, matcher, on_amd, qualified
from runner.model import Mechanism

DATA = Path(__file__).parents[1] / "data"
# Every kernel's name in the binary of NCCL's wheels, by version.
NAMES: dict[str, list[str]] = json.loads((DATA / "nccl-kernels.json").read_text())
SYMMETRIC_KERNELS = {
    "2.21.5": 0, "2.26.5": 0, "2.27.3": 39, "2.27.7": 39, "2.28.3": 39, "2.28.9": 39,
    "2.29.2": 40, "2.29.7": 50, "2.30.3": 92, "2.30.7": 92, "2.31.2": 184, "2.32.3": 184,
}  # fmt: skip

# Collective, algorithm, first version, last version, needs multicast: NVIDIA/nccl src/device/symmetric/generate.py.
SYMMETRIC_ALGORITHMS = [
    ("AllGather", "LL", (2, 27), None, False),
    ("AllGather", "LLMC", (2, 27), None, True),
    ("AllGather", "ST", (2, 27), None, False),
    ("AllGather", "STMC", (2, 27), None, True),
    ("AllGather", "GinHier_MCRing", (2, 29, 2), (2, 29, 3), True),
    ("AllGather", "RailRing_LsaSTMC", (2, 29, 7), None, True),
    ("AllGather", "TmaST", (2, 30), None, False),
    ("AllGather", "TmaSTMC", (2, 30), None, True),
    ("AllReduce", "AGxLL_R", (2, 27), None, False),
    ("AllReduce", "AGxLLMC_R", (2, 27), None, True),
    ("AllReduce", "RSxLD_AGxST", (2, 27), None, False),
    ("AllReduce", "RSxLDMC_AGxSTMC", (2, 27), None, True),
    ("AllReduce", "RSxTmaLD_AGxTmaST", (2, 30), None, False),
    ("ReduceScatter", "LL", (2, 27), None, False),
    ("ReduceScatter", "LD", (2, 27), None, False),
    ("ReduceScatter", "LDMC", (2, 27), None, True),
    ("ReduceScatter", "RailA2A_LsaLD", (2, 29, 7), None, False),
    ("ReduceScatter", "RailA2A_LsaLDMC", (2, 29, 7), None, True),
    ("ReduceScatter", "TmaLD", (2, 30), None, False),
]
KINDS = {
    "AllReduce": "all_reduce", "AllGather": "all_gather", "AllGatherV": "all_gather", "Broadcast": "broadcast",
    "ReduceScatter": "reduce_scatter", "Reduce": "reduce", "SendRecv": "send_recv", "Generic": "unknown",
}  # fmt: skip
DTYPES = {
    "f32": "float32", "f16": "float16", "bf16": "bfloat16", "f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
}  # fmt: skip
GENERAL_DTYPES = {"f64": "float64", "u8": None, "u32": None, "u64": None, **DTYPES}
# A call's arguments as the C++ ABI mangles them behind the name.
MANGLED = {
    "(ncclSymDevArgs)": "14ncclSymDevArgs",
    "(ncclSymkDevWorkArgs4K)": "22ncclSymkDevWorkArgs4K",
    "(ncclDevKernelArgsStorage<4096ul>)": "24ncclDevKernelArgsStorageILm4096EE",
    "(ncclDevComm*, unsigned long, ncclWork*)": "P11ncclDevCommmP8ncclWork",
}
# Names of the other families as they come in traces; the file says what its columns are.
FAMILIES = [line for line in (DATA / "kernel-names.txt").read_text().splitlines() if not line.startswith("#")]
NO_COLLECTIVES = [
    "void (anonymous namespace)::oneRankReduce<FuncPreMulSum<float> >(void*, void*, unsigned long)",
    "_ZN12_GLOBAL__N_113oneRankReduceI13FuncPreMulSumIfEEEvPvS3_mmb",
    "__nv_static_32__1f2e3d4c_10_onerank_cu_5b6a7988_11__ZN12_GLOBAL__N_113oneRankReduceI13FuncPreMulSumIfEEEvPvS3_mmb",
    "c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)",
    "put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)",
    "_ZL18wait_signal_kernelPPjiiiim",
    "c10d::nccl_extension::nccl_wait_for_signal_kernel(unsigned long)",
    "c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)",
    "void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)",
    "_Z36barrier_on_stream_kernel_threadgroupIL13threadgroup_t1EEvii",
    "sync_all_on_stream_kernel()",
    "nvshmemi_init_array_kernel(unsigned long*, int)",
    "void deep_ep::intranode::notify_dispatch<8>(int const*)",
    "deep_ep::internode_ll::clean_low_latency_buffer(int*, int)",
    "void deep_ep::elastic::dispatch_copy_epilogue_impl<true>(void*)",
    "void flashinfer::trtllm_mnnvl_allreduce::rmsNormLamport<__nv_bfloat16>(int)",
    "tensorrt_llm::kernels::moeA2APrepareDispatchKernel(int*)",
    "kuserbuffers_inc(int*)",
    "nccl_ep_jit_ht_scan_kernel",
    "triton_poi_fused_all_reduce_gelu_mul_0",
    "triton_red_fused_all_reduce_native_layer_norm_3",
]


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def symmetric_names(version: str) -> dict[str, tuple[str, str, bool, str | None]]:
    """The symmetric kernels of a version, built from the table: name → kind, algorithm, multicast, dtype."""
    now = number(version)
    names: dict[str, tuple[str, str, bool, str | None]] = {}
    prefix = "ncclSymDevKernel" if now < (2, 28) else "ncclSymkDevKernel"
    for collective, algorithm, first, last, multicast in SYMMETRIC_ALGORITHMS:
        if now < first or (last is not None and now > last):
            continue
        ops = {"AllGather": [], "AllReduce": ["sum"], "ReduceScatter": ["sum", "avg"] if now >= (2, 30) else ["sum"]}
        typed = {f"_{op}_{short}": dtype for op in ops[collective] for short, dtype in DTYPES.items()} or {"": None}
        for profile in ["", "_profile"] if now >= (2, 31) else [""]:
            for ending, dtype in typed.items():
                name = f"{prefix}_{collective}_{algorithm}{ending}{profile}"
                names[name] = (KINDS[collective], algorithm, multicast, dtype)
    return names


def general_names(version: str) -> dict[str, tuple[str, str | None]]:
    """The general kernels of a version, built from its rules: name → kind, dtype."""
    now = number(version)
    op, protocol = ("_Sum", "_LL") if now < (2, 31) else ("", "")
    dtypes = {short: dtype for short, dtype in GENERAL_DTYPES.items() if now >= (2, 26) or "f8" not in short}
    names: dict[str, tuple[str, str | None]] = {}
    for everything in ("SendRecv", "Generic"):
        names[f"ncclDevKernel_{everything}"] = (KINDS[everything], None)
    for collective in ("AllGather", "Broadcast", *(["AllGatherV"] if now >= (2, 29) else [])):
        names[f"ncclDevKernel_{collective}_RING{protocol}"] = (KINDS[collective], None)
    for launched in ("AllReduce RING", "AllReduce TREE", "ReduceScatter RING", "Reduce RING"):
        collective, algorithm = launched.split()
        for short, dtype in dtypes.items():
            names[f"ncclDevKernel_{collective}{op}_{short}_{algorithm}{protocol}"] = (KINDS[collective], dtype)
    return names


def forms(name: str) -> list[str]:
    """The ways one C function's name comes in traces: demangled with its arguments, bare, mangled."""
    bare = name.partition("(")[0]
    return [name, bare, f"_Z{len(bare)}{bare}{MANGLED[name[len(bare) :]]}"]


@pytest.mark.parametrize("version", NAMES)
def test_every_kernel_of_nccl(version: str) -> None:
    symmetric, general = symmetric_names(version), general_names(version)
    assert len(symmetric) == SYMMETRIC_KERNELS[version]
    seen = {name.partition("(")[0] for name in NAMES[version]}
    assert symmetric.keys() | general.keys() <= seen
    for name in NAMES[version]:
        bare = name.partition("(")[0]
        if bare in symmetric:
            kind, algorithm, multicast, dtype = symmetric[bare]
            expected = ("nccl-symmetric", True, multicast, kind, algorithm, dtype, True)
        elif bare in general:
            kind, dtype = general[bare]
            expected = ("nccl", False, None, kind, None, dtype, True)
        else:
            assert re.search("oneRankReduce|diagP2p|ResetSignals|CaptureGpuTime", name), name
            assert is_no_collective(classify(name)), name
            continue
        for form in forms(name):
            kernel = classify(form)
            assert kernel is not None, form
            assert (
                kernel.mechanism, kernel.symmetric, kernel.multicast, kernel.kind, kernel.algorithm, kernel.dtype,
                kernel.collective,
            ) == expected, form  # fmt: skip


def test_the_data_is_whole() -> None:
    assert NAMES.keys() == SYMMETRIC_KERNELS.keys()
    assert sum(len(names) for names in NAMES.values()) == 1428


def is_no_collective(kernel: Kernel | None) -> bool:
    return kernel is not None and not kernel.collective


@pytest.mark.parametrize("line", FAMILIES)
def test_collectives_of_every_family(line: str) -> None:
    mechanism, kind, algorithm, multicast, dtype, name = line.split(maxsplit=5)
    kernel = classify(name)
    assert kernel is not None
    told = {"yes": True, "no": False, "-": None}
    assert (kernel.mechanism, kernel.kind, kernel.collective) == (mechanism, kind, True)
    assert (kernel.algorithm, kernel.dtype) == (told.get(algorithm, algorithm), told.get(dtype, dtype))
    assert kernel.multicast is told[multicast]
    assert kernel.symmetric is SYMMETRIC[kernel.mechanism]


@pytest.mark.parametrize("name", NO_COLLECTIVES)
def test_kernels_that_move_no_collective(name: str) -> None:
    assert is_no_collective(classify(name))


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(float*)",
        "void cutlass::Kernel<cutlass::gemm::dispatch<cutlass::combine>>(cutlass::Params)",
        "void elementwise_kernel<ncclDevKernel_AllReduce_Sum_f32_RING_LL>(multimem_all_reduce_kernel)",
        "void cub::DeviceReduceKernel<vllm::cross_device_reduce_1stage<float>>(float*)",
        "ncclFoo(int)",
        "my_ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)",
        "ncclSymkDevKernel(int)",
        "dispatch",
        "void moe::combine<8>(int*)",
        "void my_library::allreduce_kernel<float>(float*)",
        "barrier_kernel(int*)",
        "void my_one_shot_all_reduce_kernel<float>(float*)",
        "void one_shot_all_reduce_kernels<float>(float*)",
        "allreduce3(float*)",
        "void layernorm::intranode::dispatch<8>(int*)",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float>(float const*)",
        "triton_user_all_reduce",
        "executionKernel(int)",
        "Memcpy DtoD (Device -> Device)",
        "_Z",
        "_ZN",
        "_Z99short",
        "_ZN9999999999999999999999a",
        "_ZN" + "9" * 5000 + "a",
        "__nv_static_",
        "",
        "(((<<<::",
    ],
)
def test_unknown_names_are_unknown(name: str) -> None:
    assert classify(name) is None


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("void (anonymous namespace)::f<int>(int)", "f<int>(int)"),
        ("void a::(anonymous namespace)::f(int)", "a::f(int)"),
        ("_Z1fv", "f(v"),
        ("_ZN1a2bcIiEEvT_", "a::bc<iEEvT_"),
        ("_ZL1fi", "f(i"),
        ("_Zzz", "_Zzz"),
    ],
)
def test_what_a_pattern_sees(name: str, seen: str) -> None:
    assert qualified(name) == seen


def test_on_amd_nccls_names_are_rccls() -> None:
    symmetric = classify("ncclSymkDevKernel_AllReduce_AGxLL_R_avg_bf16(ncclSymkDevWorkArgs4K)")
    general = classify("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)")
    other = classify("one_shot_all_reduce_kernel")
    assert symmetric is not None and general is not None and other is not None
    assert (on_amd(symmetric).mechanism, on_amd(symmetric).symmetric) == ("rccl-symmetric", True)
    assert (on_amd(general).mechanism, on_amd(general).symmetric) == ("rccl", False)
    assert on_amd(other) == other


def test_the_catalogue_is_well_formed() -> None:
    catalogue = load()
    assert len({row.name for row in catalogue.rows}) == len(catalogue.rows)
    for row in catalogue.rows:
        groups = re.compile(row.pattern).groupindex  # each pattern must stand alone
        assert re.compile(row.pattern).groups == len(groups), f"{row.name}: use (?:…) where nothing is captured"
        assert groups.keys() <= {"kind", "algorithm", "dtype"}, row.name
        assert re.fullmatch(r"https://[\w.-]+/\S+", row.source), row.name
        if row.collective:
            assert (row.kind is None) == ("kind" in groups), f"{row.name}: give the kind in one way"
        else:
            told = (row.kind, row.multicast, row.algorithm, row.dtype)
            assert (told, len(groups)) == ((None,) * 4, 0), f"{row.name}: tells nothing of a collective"
        if isinstance(row.multicast, str):
            re.compile(row.multicast)
            assert "algorithm" in groups, row.name
        assert not {"algorithm", "dtype"} & groups.keys() & {key for key in ("algorithm", "dtype") if getattr(row, key)}


def test_every_row_is_tried() -> None:
    names = [name for version in NAMES.values() for name in version] + NO_COLLECTIVES
    names += [line.split(maxsplit=5)[5] for line in FAMILIES]
    tried = {kernel.row for kernel in map(classify, names) if kernel is not None}
    assert tried == {row.name for row in load().rows}


def test_every_mechanism_has_its_symmetry() -> None:
    assert SYMMETRIC.keys() == set(get_args(Mechanism))


ROW = {
    "name": "mine",
    "pattern": "my::all_reduce",
    "library": "My",
    "mechanism": "library-symmetric",
    "kind": "all_reduce",
    "source": "https://example.org/my.cu",
}


def write(folder: Path, rows: list[object], **top: object) -> Path:
    path = folder / "kernels.yaml"
    path.write_text(yaml.safe_dump({"kinds": {}, "dtypes": {}, "rows": rows, **top}))
    return path


def test_one_row_adds_a_kernel(tmp_path: Path) -> None:
    row = ROW | {"symmetric": False, "multicast": True, "dtype": "float16", "algorithm": "ring"}
    mine = matcher(load(write(tmp_path, [row])))
    assert mine("void a::my::all_reduce<float>(float*)") == Kernel(
        mechanism="library-symmetric", symmetric=False, multicast=True, kind="all_reduce", algorithm="ring",
        dtype="float16", collective=True, row="mine",
    )  # fmt: skip
    assert mine("void my::all_reduced<float>(float*)") is None


def test_the_first_row_wins(tmp_path: Path) -> None:
    rows: list[object] = [ROW, ROW | {"name": "wider", "pattern": "all_reduce"}]
    match = matcher(load(write(tmp_path, rows)))
    found = [match("my::all_reduce"), match("your::all_reduce")]
    assert [kernel and kernel.row for kernel in found] == ["mine", "wider"]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([ROW, ROW | {"name": "bad", "mechanism": "magic"}], "row bad: .*magic"),
        ([ROW | {"colective": False}], "row mine: .*colective"),
        ([{"name": "bare", "pattern": "x"}], "row bare: .*library"),
        ([{"pattern": "x"}], "row without a name: "),
        (["x"], "row that is no mapping: "),
        ([ROW | {"kind": "all_reduces"}], "row mine: .*all_reduces"),
        ([ROW, ROW | {"pattern": "other"}], "2 rows are named mine; give each a name of its own"),
        ([ROW, ROW | {"name": "open", "pattern": "f("}], "row open: the pattern is no regular expression"),
    ],
)
def test_a_broken_row_is_named(tmp_path: Path, rows: list[object], told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        matcher(load(write(tmp_path, rows)))
    assert "kernels.yaml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_catalogue_that_is_no_yaml_or_no_mapping(tmp_path: Path) -> None:
    path = tmp_path / "kernels.yaml"
    for text in ("rows: [", "- a", "", "kinds: {a: no_such_kind}\ndtypes: {}\nrows: []"):
        path.write_text(text)
        with pytest.raises(UserError, match=r"kernels\.yaml") as caught:
            load(path)
        assert "byte string" not in str(caught.value)


def test_the_catalogue_is_read_at_the_first_question_only() -> None:
    script = (
        "import sys, runner.kernels as k\n"
        "assert 'yaml' not in sys.modules and k._matcher.cache_info().currsize == 0\n"
        "assert k.classify('ncclDevKernel_SendRecv').kind == 'send_recv'\n"
        "assert k._matcher.cache_info().currsize == 1"
    )
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(kernels.__file__).parents[1])


def test_what_is_remembered_is_bounded() -> None:
    assert classify.cache_info().maxsize == 4096
