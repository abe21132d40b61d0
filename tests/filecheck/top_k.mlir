// What is no better than the best k so far is passed by, two vectors at a time; the rest goes to a buffer, sorted when it is full.
// CHECK: flow.executable private @top_k_nx24000_300_f32_largest_rows {
// CHECK: func.func {{.+}}tensor<?x24000xf32>{{.+}}tensor<?x300xf32>{{.+}}tensor<?x300xi64>
// CHECK: "memref.alloca"{{.+}} memref<1x1024xi64>
// CHECK: scf.for
// CHECK: scf.for
// CHECK: vector.transfer_read
// CHECK: arith.cmpf ugt, {{.+}} : vector<8xf32>
// CHECK: vector.transfer_read
// CHECK: arith.cmpf ugt, {{.+}} : vector<8xf32>
// CHECK: vector.reduction <or>
// CHECK: scf.if
// CHECK: arith.cmpf ugt, {{.+}} : f32
// CHECK: scf.if
// CHECK: arith.maxsi
// CHECK-NEXT: arith.minsi
// CHECK: scf.for
// CHECK: arith.cmpi sge, {{.+}} : i64
// CHECK: arith.cmpi slt, {{.+}} : i64
// CHECK: tensor.insert {{.+}} tensor<?x300xf32>
// CHECK: tensor.insert {{.+}} tensor<?x300xi64>
// CHECK: util.func private @top_k_nx24000_300_f32_largest_rows_of
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
