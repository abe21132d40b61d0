// Both products of a workgroup's rows wait on the stack; what the gate makes of them is rounded from there.
// CHECK: flow.executable private @bits4_1x128x96_32_f32_rounded_gated_{{[0-9a-f]+}}_product {
// CHECK: %x = arith.constant 4 : index
// CHECK: func.func {{.+}}%q: {{.+}}%weight: {{.+}}%scale: {{.+}}%weight_up: {{.+}}%scale_up: {{.+}}%q_made: {{.+}}%qscale_made: {{.+}}%begin_made
// CHECK: "memref.alloca"{{.+}} memref<1x32xf32>
// CHECK: "memref.alloca"{{.+}} memref<1x32xf32>
// CHECK-NOT: memref.alloca
// CHECK: vpdpbusd
// CHECK: memref.store
// CHECK: vpdpbusd
// CHECK: memref.store
// CHECK-NOT: vpdpbusd
// CHECK: vector.load
// CHECK: vector.load
// CHECK: vector.reduction <maxsi>
// CHECK: math.roundeven
// CHECK: util.func private
// CHECK: flow.dispatch
// CHECK-NOT: flow.dispatch
