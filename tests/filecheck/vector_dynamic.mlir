// Sizes are index operands, tied to the bindings; booleans are passed as bytes without a conversion.
// CHECK: func.func @fa_site_attention(%q_: {{.+}}, %mask0_: {{.+}}tensor<?x1x1x?xi8>>, %dim0: index, %dim1: index, %dim2: index, %out_: {{.+}})
// CHECK: flow.dispatch.tie_shape %q_ : {{.+}}{%dim0, %dim1}
// CHECK: dispatch.tensor.load %q, {{.+}} -> tensor<?x32xf32>
// CHECK: arith.cmpi slt
// CHECK: util.func private @fa_site(%q: tensor<?x2x?x32xf32>
// CHECK: tensor.dim %q
// CHECK: flow.tensor.bitcast %mask0 : tensor<?x1x1x?xi1>{{.+}} -> tensor<?x1x1x?xi8>
// CHECK: flow.dispatch @fa_site_attention
