// Nothing to test: one loop over whole blocks of keys, no select on a position, K and V read in place.
// CHECK: flow.executable private @fa_site_attention {
// CHECK: func.func @fa_site_attention(%q: !iree_tensor_ext.dispatch.tensor<readonly:tensor<3x8x128x32xf32>>, %k: !iree_tensor_ext.dispatch.tensor<readonly:tensor<3x2x256x32xf32>>
// CHECK-NOT: arith.cmpi
// The query head's group shares a key head.
// CHECK: arith.divui %{{.+}}, %{{.+}}
// CHECK: dispatch.tensor.load %k, {{.+}} sizes = [1, 1, 256, 32], {{.+}} -> tensor<256x32xf32>
// CHECK-NOT: arith.cmpi
// Q^T, in shuffles, then O^T, which starts at zero.
// CHECK: vector.shuffle
// CHECK: linalg.fill {lowering_config =
// The blocks; scores; probabilities; output.
// CHECK: scf.for
// CHECK: scf.for
// CHECK: tensor.extract {{.+}} : tensor<256x32xf32>
// CHECK-NEXT: vector.broadcast
// CHECK-NEXT: vector.fma
// CHECK: vector.transfer_write {{.+}} tensor<64x32xf32>
// CHECK: llvm.x86.avx512.mask.scalef.ps.512
// The head dims of V that a turn reads are hidden anew, then displaced.
// CHECK: scf.for
// CHECK: scf.for
// CHECK: [[HIDDEN:%.+]] = llvm.inline_asm has_side_effects asm_dialect = att "", "=r,0"
// CHECK-NEXT: [[D:%.+]] = arith.index_cast [[HIDDEN]] : i64 to index
// CHECK: arith.addi [[D]],
// CHECK: tensor.extract {{.+}}, [[D]]] : tensor<256x32xf32>
// CHECK: vector.fma
// CHECK-NOT: arith.cmpi
// CHECK: arith.divf
// CHECK: dispatch.tensor.store {{.+}}, %out, {{.+}} sizes = [1, 1, 32, 32]
// CHECK: util.func private @fa_site(
// CHECK: flow.dispatch @fa_site_attention::@fa_site_attention[
