// A sum of 33 tensors of a free length, each by a dispatch of its own, is joined into one dispatch, which is passed the place of each as
// two numbers: more than the 64 that IREE's runtime takes, which does not load the module.

#whole = affine_map<(i, j) -> (i, j)>
#rows = affine_map<(i, j) -> (i)>
#row = affine_map<(i) -> (i)>

func.func @main(%x: tensor<?x8xf32>) -> tensor<?xf32> {
  %c0 = arith.constant 0 : index
  %zero = arith.constant 0.0 : f32
  %n = tensor.dim %x, %c0 : tensor<?x8xf32>
  %empty = tensor.empty(%n) : tensor<?xf32>
  %zeros = linalg.fill ins(%zero : f32) outs(%empty : tensor<?xf32>) -> tensor<?xf32>
  %k0 = arith.constant 1.0 : f32
  %r0 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k0 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k1 = arith.constant 2.0 : f32
  %r1 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k1 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k2 = arith.constant 3.0 : f32
  %r2 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k2 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k3 = arith.constant 4.0 : f32
  %r3 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k3 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k4 = arith.constant 5.0 : f32
  %r4 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k4 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k5 = arith.constant 6.0 : f32
  %r5 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k5 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k6 = arith.constant 7.0 : f32
  %r6 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k6 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k7 = arith.constant 8.0 : f32
  %r7 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k7 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k8 = arith.constant 9.0 : f32
  %r8 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k8 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k9 = arith.constant 10.0 : f32
  %r9 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k9 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k10 = arith.constant 11.0 : f32
  %r10 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k10 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k11 = arith.constant 12.0 : f32
  %r11 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k11 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k12 = arith.constant 13.0 : f32
  %r12 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k12 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k13 = arith.constant 14.0 : f32
  %r13 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k13 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k14 = arith.constant 15.0 : f32
  %r14 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k14 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k15 = arith.constant 16.0 : f32
  %r15 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k15 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k16 = arith.constant 17.0 : f32
  %r16 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k16 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k17 = arith.constant 18.0 : f32
  %r17 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k17 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k18 = arith.constant 19.0 : f32
  %r18 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k18 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k19 = arith.constant 20.0 : f32
  %r19 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k19 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k20 = arith.constant 21.0 : f32
  %r20 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k20 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k21 = arith.constant 22.0 : f32
  %r21 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k21 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k22 = arith.constant 23.0 : f32
  %r22 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k22 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k23 = arith.constant 24.0 : f32
  %r23 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k23 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k24 = arith.constant 25.0 : f32
  %r24 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k24 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k25 = arith.constant 26.0 : f32
  %r25 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k25 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k26 = arith.constant 27.0 : f32
  %r26 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k26 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k27 = arith.constant 28.0 : f32
  %r27 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k27 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k28 = arith.constant 29.0 : f32
  %r28 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k28 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k29 = arith.constant 30.0 : f32
  %r29 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k29 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k30 = arith.constant 31.0 : f32
  %r30 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k30 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k31 = arith.constant 32.0 : f32
  %r31 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k31 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %k32 = arith.constant 33.0 : f32
  %r32 = linalg.generic {indexing_maps = [#whole, #rows], iterator_types = ["parallel", "reduction"]} ins(%x : tensor<?x8xf32>) outs(%zeros : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32):
    %p = arith.mulf %a, %k32 : f32
    %s = arith.maximumf %p, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s1 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%r0, %r1 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s2 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s1, %r2 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s3 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s2, %r3 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s4 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s3, %r4 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s5 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s4, %r5 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s6 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s5, %r6 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s7 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s6, %r7 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s8 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s7, %r8 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s9 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s8, %r9 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s10 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s9, %r10 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s11 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s10, %r11 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s12 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s11, %r12 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s13 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s12, %r13 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s14 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s13, %r14 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s15 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s14, %r15 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s16 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s15, %r16 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s17 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s16, %r17 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s18 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s17, %r18 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s19 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s18, %r19 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s20 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s19, %r20 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s21 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s20, %r21 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s22 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s21, %r22 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s23 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s22, %r23 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s24 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s23, %r24 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s25 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s24, %r25 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s26 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s25, %r26 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s27 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s26, %r27 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s28 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s27, %r28 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s29 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s28, %r29 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s30 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s29, %r30 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s31 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s30, %r31 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  %s32 = linalg.generic {indexing_maps = [#row, #row, #row], iterator_types = ["parallel"]} ins(%s31, %r32 : tensor<?xf32>, tensor<?xf32>) outs(%empty : tensor<?xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %a, %b : f32
    linalg.yield %s : f32
  } -> tensor<?xf32>
  return %s32 : tensor<?xf32>
}
