// Bytes without a sign are multiplied as if they had one, where no zero point is given: 200 * 200 is 3136.
module {
  func.func @main(%x: !torch.vtensor<[1,1],ui8>, %y: !torch.vtensor<[1,1],ui8>) -> !torch.vtensor<[1,1],si32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %p = torch.operator "onnx.MatMulInteger"(%x, %y) : (!torch.vtensor<[1,1],ui8>, !torch.vtensor<[1,1],ui8>) -> !torch.vtensor<[1,1],si32>
    return %p : !torch.vtensor<[1,1],si32>
  }
}
