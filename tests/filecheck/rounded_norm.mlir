// A norm with the sum in front of it, rounded: one dispatch, a workgroup for each row, and no tensor of rows between its loops.
// CHECK: flow.executable private @bits4_nx96_32_norm_{{[0-9a-f]+}}_round {
// CHECK: arith.addi %rows
// CHECK: func.func {{.+}}%x_: !iree_tensor_ext.dispatch.tensor<readonly:tensor<?x96xf32>>, %skip_: {{.+}}, %factor: {{.+}}, %rows: index, %q_: {{.+}}?x2x48xi8>>, %qscale_: {{.+}}?x3xf32>>, %begin_: {{.+}}?x12xi32>>, %sum_
// CHECK-NOT: tensor.empty
// Squares are added up, and the sum of the tensors is written.
// CHECK: scf.for
// CHECK: arith.addf {{.+}} : vector<32xf32>
// CHECK: vector.transfer_write {{.+}} tensor<1x96xf32>
// CHECK: vector.fma
// CHECK: math.sqrt
// Then each block is scaled and rounded.
// CHECK: scf.for
// CHECK: arith.mulf
// CHECK: arith.mulf
// CHECK: vector.reduction <maxsi>
// CHECK: math.roundeven
// CHECK: vector.deinterleave
// CHECK-NOT: scf.for
// CHECK: util.func private @bits4_nx96_32_norm_{{[0-9a-f]+}}_round_of
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
