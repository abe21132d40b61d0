// Workgroups of ten rows.
CHECK: flow.executable.export public
CHECK-NEXT: arith.constant 20 : index
CHECK: scf.for
// The mean, four sums apart.
CHECK: scf.for
CHECK-COUNT-7: arith.addf {{.*}} : vector<16xf32>
CHECK: vector.reduction <add>
// What it leaves, and the squares of that.
CHECK: scf.for
CHECK-COUNT-4: vector.fma
CHECK-COUNT-2: vector.reduction <add>
// Once more where the squares pass f32.
CHECK: arith.cmpf olt
CHECK: scf.if
CHECK: } else {
CHECK-COUNT-2: scf.for
CHECK: math.sqrt
CHECK: scf.for
CHECK-COUNT-4: vector.transfer_write
