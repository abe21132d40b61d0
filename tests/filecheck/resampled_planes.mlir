// Of a run of rows, two rows are made of elements that are picked, and each row of the result of these two by whole vectors.
// CHECK: flow.executable private @resample_nx64x64_to_128x128_by_2_{{[0-9a-f]+}}_in_64_1_planes {
// CHECK: arith.ceildivui
// CHECK: func.func {{.+}}tensor<?x64x64xf32>{{.+}}tensor<64x6xi32>{{.+}}tensor<2xi32>{{.+}}tensor<2x128xi32>{{.+}}tensor<2x128xf32>{{.+}}tensor<128x2xf32>{{.+}}tensor<?x128x128xf32>
// CHECK: memref.alloca{{.+}}memref<2x128xf32>
// CHECK-COUNT-4: scf.for
// CHECK: vector.shuffle {{.+}} [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7]
// CHECK: vector.shuffle {{.+}} [1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8]
// CHECK: vector.store
// CHECK-NOT: vector.gather
// CHECK: dispatch.tensor.load %y, offsets = [%{{.+}}, %{{.+}}, 0], sizes = [1, 1, 128]
// CHECK: scf.for
// CHECK-NOT: vector.gather
// CHECK-COUNT-2: vector.load
// CHECK: vector.transfer_write
// CHECK: dispatch.tensor.store
// CHECK: util.func private @resample_nx64x64_to_128x128_by_2_{{[0-9a-f]+}}_in_64_1_planes_of
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
