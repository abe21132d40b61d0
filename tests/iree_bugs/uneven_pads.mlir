// A convolution of integers whose pads before an axis are other than those behind it is refused.
module {
  func.func @main(%x: !torch.vtensor<[1,1,4,4],ui8>, %w: !torch.vtensor<[1,1,2,2],ui8>) -> !torch.vtensor<[1,1,4,4],si32> attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %y = torch.operator "onnx.ConvInteger"(%x, %w) {torch.onnx.pads = [0 : si64, 0 : si64, 1 : si64, 1 : si64]} : (!torch.vtensor<[1,1,4,4],ui8>, !torch.vtensor<[1,1,2,2],ui8>) -> !torch.vtensor<[1,1,4,4],si32>
    return %y : !torch.vtensor<[1,1,4,4],si32>
  }
}
