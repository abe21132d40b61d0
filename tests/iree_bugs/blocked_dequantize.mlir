// DequantizeLinear with a block size is refused.
module {
  func.func @main(%x: !torch.vtensor<[4,8],si8>, %s: !torch.vtensor<[4,2],f32>) -> !torch.vtensor<[4,8],f32> attributes {torch.onnx_meta.opset_version = 21 : si64, torch.onnx_meta.ir_version = 10 : si64} {
    %y = torch.operator "onnx.DequantizeLinear"(%x, %s) {torch.onnx.axis = 1 : si64, torch.onnx.block_size = 4 : si64} : (!torch.vtensor<[4,8],si8>, !torch.vtensor<[4,2],f32>) -> !torch.vtensor<[4,8],f32>
    return %y : !torch.vtensor<[4,8],f32>
  }
}
