// CHECK: flow.executable private @linear_attention_{{[0-9a-f]+}}_tokens
// CHECK: workgroups(%batch: index, %tokens: index)
// CHECK: %each = arith.constant 4 : index
// CHECK: "memref.alloca"
// CHECK-SAME: memref<64x64xf32>
// CHECK: scf.for {{.*}} to %tokens
// CHECK: vector.fma
// CHECK: iree_tensor_ext.dispatch.tensor.store {{.*}} %read,
// CHECK: iree_tensor_ext.dispatch.tensor.store {{.*}} %last,
// CHECK-NOT: linalg.generic
// CHECK: util.func private @linear_attention_
// CHECK: flow.dispatch @
// CHECK-NOT: flow.dispatch
