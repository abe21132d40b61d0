// Of a run of rows, two rows are made of elements that are picked, and each row of the result of these two by whole vectors.
// CHECK: flow.executable private @resample_nx64x64_to_128x128_by_2_in_64_1_planes {
// CHECK: arith.ceildivui
// CHECK: func.func {{.+}}tensor<?x64x64xf32>{{.+}}tensor<64x6xi32>{{.+}}tensor<2xi32>{{.+}}tensor<2x128xi32>{{.+}}tensor<2x128xf32>{{.+}}tensor<128x2xf32>{{.+}}tensor<?x128x128xf32>
// CHECK: memref.alloca{{.+}}memref<2x128xf32>
// CHECK: scf.for
// CHECK: scf.for
// CHECK: scf.for
// CHECK-COUNT-2: vector.gather {{.+}} into vector<16xf32>
// CHECK-NOT: vector.gather
// CHECK: vector.store
// CHECK: scf.for
// CHECK-COUNT-2: vector.gather {{.+}} into vector<16xf32>
// CHECK: vector.store
// CHECK: scf.for
// CHECK: dispatch.tensor.load %y, offsets = [%{{.+}}, %{{.+}}, 0], sizes = [1, 1, 128]
// CHECK: scf.for
// CHECK-NOT: vector.gather
// CHECK-COUNT-2: vector.load
// CHECK: vector.transfer_write
// CHECK: dispatch.tensor.store
// CHECK: util.func private @resample_nx64x64_to_128x128_by_2_in_64_1_planes_of
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
