// Whole blocks up to the first query, then the blocks on the diagonal, which alone compare positions.
// CHECK: vector.step
// CHECK: arith.minsi
// CHECK: scf.for
// CHECK: vector.fma
// CHECK-NOT: arith.cmpi sle
// CHECK: vector.transfer_write
// CHECK: ceildivui
// CHECK: scf.for
// CHECK: arith.cmpi sle
// CHECK-NEXT: arith.select
// CHECK: dispatch.tensor.store
