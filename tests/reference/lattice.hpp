// Layouts of every kind for a model of eight layers, and a batch of eight but for three replicas: what CPU ranks are held
// against the reference under, and a GPU's ranks against the CPU's.
#pragma once

namespace sextant::testing {

inline constexpr const char* kLattice[] = {
    // plain, accumulation, recomputation
    "mbs8",
    "mbs1",
    "mbs2.sel",
    "mbs1.full",
    "mbs1.full3",
    // sharding
    "dp2.z0.mbs1.b4K",
    "dp2.z0.mbs2.b4K.nogr",
    "dp4.z1.mbs1.b4K",
    "dp4.z1.mbs1.b4K.nopg",
    "dp4.z1.mbs1.b4K.nogr.nopg",
    "dp8.z1.mbs1.b1K.lb4",
    "dp3.z1.mbs1",
    "dp2.z2.mbs1.b4K",
    "dp2.z2.mbs1.b4K.nogr",
    "dp4.z3.mbs1",
    "dp4.z3.mbs1.nopg",
    "dp2.z3.mbs2.full",
    "dp4.z1.mbs1.sd2.b4K",
    "dp8.z3.mbs1.sd4",
    "dp4.z2.mbs1.sd2.b4K",
    // tensor and sequence parallelism
    "tp2.nosp.mbs2",
    "tp4.nosp.mbs4.sel",
    "tp2.sp.mbs2",
    "tp4.sp.mbs2.full",
    "tp2.sp.mbs1.sel.dp2.z1.b4K",
    "tp2.nosp.mbs1.full.dp2.z3",
    // context parallelism
    "cp2.mbs2",
    "cp4.mbs1.z1.b4K",
    "tp2.sp.cp2.mbs1.dp2.z1",
    "cp2.mbs1.full.z3",
    // pipelines
    "pp2.mbs1",
    "pp4.mbs2",
    "pp4.mbs1.gpipe",
    "pp2.vp2.mbs1",
    "pp2.vp4.mbs1.dp2.z1.b4K",
    "pp2.mbs1.zb",
    "pp4.mbs1.zb.sel",
    "pp4.mbs1.L1-3-3-1",
    "tp2.sp.pp2.mbs1.zb",
    "tp2.sp.pp2.vp2.mbs1.dp2.z1.b4K.full1",
    "pp2.mbs1.zb.dp2.z2.b4K",
    "pp2.mbs1.dp2.z3",
    "pp2.mbs1.full.dp2.z2.b4K",
    // offload
    "mbs1.oo50",
    "mbs1.oo100.dp2.z1.b4K",
    "dp2.z2.mbs1.oo30.b4K",
    "mbs2.po",
    "dp2.z3.mbs1.po",
    "dp2.z3.mbs1.po.oo60",
    "mbs2.ao3",
    "mbs1.ao8.hz2",
    "tp2.sp.mbs2.ao2.dp2.z1",
    "mbs1.ao4.hz3.full2",
    "pp2.mbs1.ao2.dp2.z2.b4K.oo100",
};

// Sequences of a step that the layout divides.
inline int lattice_batch(int dp) { return dp == 3 ? 6 : 8; }

}  // namespace sextant::testing
