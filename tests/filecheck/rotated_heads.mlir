// Heads are read where they lie in longer rows, and both halves of each are written by one dispatch.
// CHECK: flow.executable private @rotate_nx80_16_3x64_rows {
// CHECK: func.func {{.+}}tensor<?x80xf32>{{.+}}tensor<?x32xf32>{{.+}}tensor<?x32xf32>{{.+}}tensor<?x192xf32>
// CHECK: dispatch.tensor.load %x, offsets = [%{{.+}}, 16], sizes = [1, 192]
// CHECK: scf.for
// CHECK: arith.subf {{.+}} vector<16xf32>
// CHECK: arith.addf {{.+}} vector<16xf32>
// CHECK: vector.transfer_write
// CHECK-NEXT: vector.transfer_write
// CHECK-NOT: scf.for
// CHECK: util.func private @rotate_nx80_16_3x64_rows_of
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
