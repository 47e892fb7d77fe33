#!/usr/bin/env python3
"""Makes the traces of tests/golden/traces.

    make_traces.py shrink IN.json.gz OUT.json.gz [FIRST LAST]   of a real trace what a device did in these steps, its launches, the marks
    make_traces.py craft FOLDER                                 four ranks of a LLaMA with PP 2 and DP 2, of which every part is known

Crafted traces are true to the form in which the PyTorch profiler 2.9 (Kineto) and `nsys export -t sqlite` write them; kernel names are
those of PyTorch 2.9, Transformer Engine and NCCL 2.27 on H100. `expected.json` holds, per rank and step, how the time was put together.
"""
import gzip
import json
import pathlib
import random
import sys

DEVICE_ARGS = ("device", "stream", "correlation", "bytes", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype",
               "Process Group Name", "Process Group Description", "Process Group Ranks", "Src Rank", "Dst Rank")


def write_packed(path: pathlib.Path, value: dict) -> None:
    with open(path, "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(json.dumps(value, separators=(",", ":")).encode())


def shrink(source: str, target: str, *steps: str) -> None:
    with gzip.open(source) as f:
        whole = json.load(f)
    events = whole["traceEvents"]
    marks = [e for e in events if e.get("name", "").startswith("ProfilerStep#") and e.get("cat") != "gpu_user_annotation" and "dur" in e]
    if steps:
        marks = [m for m in marks if int(steps[0]) <= int(m["name"].split("#")[1]) <= int(steps[1])]
    low, high = min(m["ts"] for m in marks), max(m["ts"] + m["dur"] for m in marks)
    launches = {e["args"]["correlation"]: e for e in events
                if e.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in e.get("args", {})}
    kept = []
    for e in events:
        if e.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        launch = launches.get(e["args"].get("correlation"))
        if not low <= (launch or e)["ts"] <= high:
            continue
        fields = {f: e[f] for f in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
        fields["name"] = e["name"][:70]
        kept.append(fields | {"args": {a: e["args"][a] for a in DEVICE_ARGS if a in e["args"]}})
        if launch:
            kept.append({f: launch[f] for f in ("ph", "cat", "name", "pid", "tid", "ts", "dur")}
                        | {"args": {"correlation": launch["args"]["correlation"]}})
    kept += [{f: m[f] for f in ("ph", "cat", "name", "pid", "tid", "ts", "dur")} | {"args": {}} for m in marks]
    out = {"schemaVersion": 1}
    if "deviceProperties" in whole:
        out["deviceProperties"] = [{f: p[f] for f in ("id", "name", "totalGlobalMem")} for p in whole["deviceProperties"][:1]]
    if "distributedInfo" in whole:
        out["distributedInfo"] = whole["distributedInfo"]
    write_packed(pathlib.Path(target), out | {"traceEvents": kept})


GEMM = ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1",
        "void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<cute::tuple<int, int, int, int> > >(Params)")
FORWARD = ("void flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false, cutlass::bfloat16_t> >(Flash_fwd_params)")
BACKWARD = ("void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<64, 128, 128> >(Flash_bwd_params)")
NORM = ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "triton_poi_fused_mul_silu_5",
        "void transformer_engine::normalization::rmsnorm_fwd_tuned_kernel<>(ForwardKernelParams)")
LOSS = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, float, float>(float*, float const*, int)"
ADAM = ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>,"
        " at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, ADAM_MODE::ADAMW, false> >()")
LEAD_NS = 290_000  # the host runs so far ahead of the device
DP, PP = 2, 2
LAYERS, MICROBATCHES = 2, 4  # of a stage; of a step


class Rank:
    """A device's time, put together piece by piece; each piece is entered under its part."""

    def __init__(self, rank: int):
        self.rank, self.dp, self.pp = rank, rank % DP, rank // DP
        self.dice = random.Random(rank)
        self.events, self.marks, self.steps = [], [], []
        self.now = self.begin = 1_000_000_000
        self.correlation = 1000 * rank
        self.parts: dict[str, int] = {}

    def add(self, part: str, ns: int) -> None:
        self.parts[part] = self.parts.get(part, 0) + ns

    def record(self, name: str, begin: int, ns: int, stream: int, launch: int, cat: str = "kernel", **args: object) -> None:
        self.correlation += 1
        self.events.append({"cat": cat, "name": name, "begin": begin, "ns": ns, "stream": stream, "launch": launch,
                            "correlation": self.correlation, "args": args})

    def compute(self, part: str, name: str, us: float, late: bool = False) -> None:
        ns = round(us * 1000 * self.dice.uniform(0.98, 1.02))
        self.record(name, self.now, ns, 7, self.now - (4_000 if late else LEAD_NS))
        self.add(part, ns)
        self.now += ns

    def host_gap(self, us: float) -> None:
        """What comes next must be `late`."""
        self.now += round(us * 1000)
        self.add("host", round(us * 1000))

    def collective(self, kind: str, said: str, group: str, ns: int, begin: int, stream: int, **more: object) -> None:
        ranks = [self.dp + DP * p for p in range(PP)] if group == "mesh_pp" else [d + DP * self.pp for d in range(DP)]
        number = {"mesh_pp": 1 + self.dp, "mesh_dp_shard": 3 + self.pp}[group]
        self.record(f"ncclDevKernel_{kind}(ncclDevKernelArgsStorage<4096ul>)", begin, ns, stream, begin - LEAD_NS,
                    **{"Collective name": said, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": len(ranks),
                       "dtype": "BFloat16", "Process Group Name": str(number), "Process Group Description": group,
                       "Process Group Ranks": str(ranks)} | more)

    def exposed(self, kind: str, said: str, group: str, us: float, wait_us: float = 0, **more: object) -> None:
        """On its own: nothing computes beside it."""
        pipeline = group == "mesh_pp"
        ns, wait = round(us * 1000), round(wait_us * 1000)
        self.collective(kind, said, group, ns + wait, self.now, 24 if pipeline else 20, **more)
        self.add("exposed_pp" if pipeline else "exposed_dp", ns)
        self.add("bubble" if pipeline else "stragglers", wait)
        self.now += ns + wait

    def transfer(self, source: int, destination: int, wait_us: float) -> None:
        here = self.rank == destination
        self.exposed("SendRecv", "recv" if here else "send", "mesh_pp", 40, wait_us if here else 0,
                     **{"Src Rank": source, "Dst Rank": destination})

    def layer_forward(self, late: bool) -> None:
        self.compute("element_wise", NORM[0], 30, late)
        self.compute("gemm", GEMM[0], 180)
        self.compute("attention", FORWARD, 90)
        self.compute("gemm", GEMM[1], 120)
        self.compute("element_wise", NORM[2], 30)
        self.compute("gemm", GEMM[2], 420)
        self.compute("element_wise", NORM[1], 40)

    def layer_backward(self) -> None:
        self.compute("element_wise", NORM[1], 60)
        self.compute("gemm", GEMM[0], 840)
        self.compute("attention", BACKWARD, 230)
        self.compute("gemm", GEMM[1], 600)
        self.compute("element_wise", NORM[0], 70)

    def forward(self, wait_us: float) -> None:
        if self.pp > 0:
            self.transfer(self.rank - DP, self.rank, wait_us)
        else:
            self.record("Memcpy HtoD (Pinned -> Device)", self.now, 6_000, 7, self.now - LEAD_NS, "gpu_memcpy", bytes=65536)
            self.add("offload", 6_000)
            self.now += 6_000
        for layer in range(LAYERS):
            late = self.rank == 1 and layer == 1
            if late:
                self.host_gap(25)
            self.layer_forward(late)
        if self.pp + 1 < PP:
            self.transfer(self.rank, self.rank + DP, 0)

    def backward(self, wait_us: float, last: bool) -> None:
        if self.pp + 1 < PP:
            self.transfer(self.rank + DP, self.rank, wait_us)
        else:
            self.compute("element_wise", LOSS, 5500)
            self.compute("gemm", GEMM[0], 13_000)
        if last:  # the reduction runs beside the last layers, and 120 us longer
            begin = self.now
        for _ in range(LAYERS):
            self.layer_backward()
        if self.pp > 0:
            self.transfer(self.rank, self.rank - DP, 0)
        if last:
            self.collective("ReduceScatter_Sum_bf16_RING_LL", "_reduce_scatter_base", "mesh_dp_shard", self.now + 120_000 - begin, begin, 20)
            self.add("exposed_dp", 120_000)
            if self.pp > 0:  # the transfer above ran beside the reduction: both are exposed, each has its half
                self.add("exposed_pp", -20_000)
                self.add("exposed_dp", 20_000)
            self.now += 120_000

    def step(self, number: int) -> None:
        self.begin, self.parts = self.now, {}
        slower = 1.0 if number == 10 else 1.2
        self.exposed("AllGather_RING_LL", "_allgather_base", "mesh_dp_shard", 1_900, 2_600 * slower if self.dp == 0 else 0)
        order = ["F", "F", "B", "F", "B", "F", "B", "B"] if self.pp == 0 else ["F", "B"] * MICROBATCHES
        done = {"F": 0, "B": 0}
        for what in order:
            n = done[what] = done[what] + 1
            if what == "F":
                self.forward(4_000 if n == 1 else 20)
            else:
                self.backward(18_000 * slower if n == 1 else 16_000, n == MICROBATCHES)
        self.compute("optimizer", ADAM, 2800)
        self.host_gap(21_000)  # the host's work between two steps
        self.marks.append((number, self.begin - 300_000, self.now - self.begin))
        self.steps.append({"number": number, "step": self.now - self.begin} | self.parts)

    def kineto(self) -> dict:
        ahead = self.rank * 7_300_000_000  # clocks of ranks are not aligned

        def us(ns: int) -> float:
            return round((ns + ahead) / 1000, 3)

        events: list[dict] = [{"ph": "M", "name": "process_name", "ts": us(self.marks[0][1]), "pid": 0, "tid": 0, "args": {"name": "python"}}]
        for e in self.events:
            events.append({"ph": "X", "cat": e["cat"], "name": e["name"], "pid": 0, "tid": e["stream"], "ts": us(e["begin"]), "dur": e["ns"] / 1000,
                           "args": {"External id": e["correlation"], "device": 0, "context": 1, "stream": e["stream"],
                                    "correlation": e["correlation"]} | e["args"]})
            events.append({"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 4711, "tid": 4711, "ts": us(e["launch"]), "dur": 3.2,
                           "args": {"cbid": 211, "correlation": e["correlation"]}})
        for number, begin, ns in self.marks:
            events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{number}", "pid": 4711, "tid": 4711, "ts": us(begin),
                           "dur": ns / 1000, "args": {"External id": number}})
        groups = [{"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": 4, "ranks": [0, 1, 2, 3]}]
        return {"schemaVersion": 1,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85029158912, "computeMajor": 9}],
                "distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": 4, "pg_count": 5, "pg_config": groups},
                "displayTimeUnit": "ms", "baseTimeNanoseconds": 1759304448000000000, "traceEvents": events, "traceName": f"rank{self.rank}_trace.json"}


SCHEMA = """CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
INSERT INTO META_DATA_EXPORT VALUES ('EXPORT_SCHEMA_VERSION', '3.20.3');
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER NOT NULL, id INTEGER NOT NULL, name TEXT, busLocation TEXT, totalMemory INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER, uuid TEXT);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
 greenContextId INTEGER, streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL, shortName INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL,
 streamId INTEGER NOT NULL, correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL, eventClass INTEGER NOT NULL, globalTid INTEGER,
 correlationId INTEGER, nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT, globalTid INTEGER, textId INTEGER);
"""


def nsys(ranks: list[Rank]) -> str:
    """One export of several processes, each with a device of its own under CUDA number 0."""
    rows, strings = [SCHEMA], {"cudaLaunchKernel_v7000": 1}
    for rank in ranks:
        process = (1 << 48) | ((4711 + rank.rank) << 24)
        rows.append(f"INSERT INTO TARGET_INFO_GPU VALUES (1, {rank.rank}, 'NVIDIA H100 80GB HBM3', '0000:0{rank.rank}:00.0', 85029158912);")
        rows.append(f"INSERT INTO TARGET_INFO_CUDA_DEVICE VALUES ({rank.rank}, 0, {4711 + rank.rank}, 'GPU-{rank.rank}');")
        for e in rank.events:
            begin, end, number = e["begin"], e["begin"] + e["ns"], e["correlation"]
            if e["cat"] == "gpu_memcpy":
                rows.append(f"INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES ({begin},{end},0,1,{e['stream']},{number},{process},65536,1);")
            else:
                name = strings.setdefault(e["name"], len(strings) + 1)
                rows.append(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({begin},{end},0,1,NULL,{e['stream']},{number},{process},{name},{name});")
            rows.append(f"INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES ({e['launch']},{e['launch'] + 3200},0,{process + 4711},{number},1,0);")
        for number, begin, ns in rank.marks:
            rows.append(f"INSERT INTO NVTX_EVENTS VALUES ({begin},{begin + ns},59,'iteration {number}',{process + 4711},NULL);")
    rows += [f"INSERT INTO StringIds VALUES ({number}, '{text}');" for text, number in strings.items()]
    return "\n".join(rows) + "\n"


def craft(folder: str) -> None:
    target = pathlib.Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    ranks = [Rank(r) for r in range(DP * PP)]
    for rank in ranks:
        rank.step(10)
        rank.step(11)
        write_packed(target / f"rank{rank.rank}_trace.json.gz", rank.kineto())
    known = {str(r.rank): [{k: v if k == "number" else v / 1e9 for k, v in sorted(s.items())} for s in r.steps] for r in ranks}
    (target / "expected.json").write_text(json.dumps(known, indent=1) + "\n")
    with open(target / "nsys_two_ranks.sql.gz", "wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(nsys(ranks[:2]).encode())


if __name__ == "__main__":
    if len(sys.argv) > 2 and sys.argv[1] in ("shrink", "craft"):
        {"shrink": shrink, "craft": craft}[sys.argv[1]](*sys.argv[2:])
    else:
        sys.exit(__doc__)
