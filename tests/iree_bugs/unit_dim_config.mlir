// iree-compile folds the unit dim m of this op inside the dispatch and keeps the lowering config as it was, so the tiles shift by
// one: n gets m's tile of 1 and k1 gets n's tile of 32. It compiles, with the warning "tiling is not thread safe", to a wrong result.
// iree-compile %s --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu
//   --iree-llvmcpu-target-cpu=host --iree-llvmcpu-max-allowed-number-of-native-vectors=8192 -o out.vmfb
flow.executable private @fa_attention {
flow.executable.export public @fa_attention workgroups() -> (index, index, index) {
  %x, %y, %z = iree_tensor_ext.dispatch.workgroup_count_from_slice()
  flow.return %x, %y, %z : index, index, index
}
builtin.module {
func.func @fa_attention(%q_arg: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x1x48xf32>>, %k_arg: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x72x48xf32>>, %v_arg: !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x72x32xf32>>, %o_arg: !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x1x32xf32>>) {
  %q = iree_tensor_ext.dispatch.tensor.load %q_arg, offsets = [0, 0, 0], sizes = [4, 1, 48], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x1x48xf32>> -> tensor<4x1x48xf32>
  %k = iree_tensor_ext.dispatch.tensor.load %k_arg, offsets = [0, 0, 0], sizes = [4, 72, 48], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x72x48xf32>> -> tensor<4x72x48xf32>
  %v = iree_tensor_ext.dispatch.tensor.load %v_arg, offsets = [0, 0, 0], sizes = [4, 72, 32], strides = [1, 1, 1] : !iree_tensor_ext.dispatch.tensor<readonly:tensor<4x72x32xf32>> -> tensor<4x72x32xf32>
  %scale = arith.constant 0x3E800000 : f32
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 0x3F800000 : f32
  %lowest = arith.constant 0xFF7FFFFF : f32
  %acc_empty = tensor.empty() : tensor<4x1x32xf32>
  %row_empty = tensor.empty() : tensor<4x1xf32>
  %acc0 = linalg.fill ins(%zero : f32) outs(%acc_empty : tensor<4x1x32xf32>) -> tensor<4x1x32xf32>
  %max0 = linalg.fill ins(%lowest : f32) outs(%row_empty : tensor<4x1xf32>) -> tensor<4x1xf32>
  %sum0 = linalg.fill ins(%zero : f32) outs(%row_empty : tensor<4x1xf32>) -> tensor<4x1xf32>
  %online:3 = iree_linalg_ext.online_attention <indexing_maps = [affine_map<(h, m, n, k1, k2) -> (h, m, k1)>, affine_map<(h, m, n, k1, k2) -> (h, k2, k1)>, affine_map<(h, m, n, k1, k2) -> (h, k2, n)>, affine_map<(h, m, n, k1, k2) -> ()>, affine_map<(h, m, n, k1, k2) -> (h, m, n)>, affine_map<(h, m, n, k1, k2) -> (h, m)>, affine_map<(h, m, n, k1, k2) -> (h, m)>]> {compilation_info = #iree_codegen.compilation_info<lowering_config = #iree_cpu.lowering_config<distribution = [1, 1, 0, 0, 0], vector_common_parallel = [1, 1, 32, 0, 0], vector_reduction = [0, 0, 0, 0, 32]>, translation_info = #iree_codegen.translation_info<pipeline = #iree_cpu.pipeline<LinalgExtTileAndVectorize>>>} ins(%q, %k, %v, %scale : tensor<4x1x48xf32>, tensor<4x72x48xf32>, tensor<4x72x32xf32>, f32) outs(%acc0, %max0, %sum0 : tensor<4x1x32xf32>, tensor<4x1xf32>, tensor<4x1xf32>) {
  ^bb0(%score: f32):
    iree_linalg_ext.yield %score : f32
  } -> tensor<4x1x32xf32>, tensor<4x1xf32>, tensor<4x1xf32>
  %o_empty = tensor.empty() : tensor<4x1x32xf32>
  %o = linalg.generic {indexing_maps = [affine_map<(h, m, n) -> (h, m, n)>, affine_map<(h, m, n) -> (h, m)>, affine_map<(h, m, n) -> (h, m, n)>], iterator_types = ["parallel", "parallel", "parallel"]} ins(%online#0, %online#2 : tensor<4x1x32xf32>, tensor<4x1xf32>) outs(%o_empty : tensor<4x1x32xf32>) {
  ^bb0(%x0: f32, %x1: f32, %unused: f32):
    %y = arith.divf %x0, %x1 : f32
    linalg.yield %y : f32
  } -> tensor<4x1x32xf32>
  iree_tensor_ext.dispatch.tensor.store %o, %o_arg, offsets = [0, 0, 0], sizes = [4, 1, 32], strides = [1, 1, 1] : tensor<4x1x32xf32> -> !iree_tensor_ext.dispatch.tensor<writeonly:tensor<4x1x32xf32>>
  return
}
}
}
util.func private @fa(%q: tensor<4x1x48xf32>, %k: tensor<4x72x48xf32>, %v: tensor<4x72x32xf32>) -> tensor<4x1x32xf32> {
  %axis0 = arith.constant 0 : index
  %axis1 = arith.constant 1 : index
  %axis2 = arith.constant 2 : index
  %q_ = flow.tensor.reshape %q : tensor<4x1x48xf32> -> tensor<4x1x48xf32>
  %k_ = flow.tensor.reshape %k : tensor<4x72x48xf32> -> tensor<4x72x48xf32>
  %v_ = flow.tensor.reshape %v : tensor<4x72x32xf32> -> tensor<4x72x32xf32>
  %o_ = flow.dispatch @fa_attention::@fa_attention(%q_, %k_, %v_) : (tensor<4x1x48xf32>, tensor<4x72x48xf32>, tensor<4x72x32xf32>) -> tensor<4x1x32xf32>
  %result = flow.tensor.reshape %o_ : tensor<4x1x32xf32> -> tensor<4x1x32xf32>
  util.return %result : tensor<4x1x32xf32>
}
func.func @g(%a0: tensor<4x1x48xf32>, %a1: tensor<4x72x48xf32>, %a2: tensor<4x72x32xf32>) -> tensor<4x1x32xf32> {
  %r = util.call @fa(%a0, %a1, %a2) : (tensor<4x1x48xf32>, tensor<4x72x48xf32>, tensor<4x72x32xf32>) -> tensor<4x1x32xf32>
  return %r : tensor<4x1x32xf32>
}
