// Unsigned integers are divided as signed ones: 200 / 10 is -5, and the rest of it 4.
module {
  func.func @main(%x: !torch.vtensor<[4],ui8>, %y: !torch.vtensor<[4],ui8>) -> (!torch.vtensor<[4],ui8>, !torch.vtensor<[4],ui8>) attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %q = torch.operator "onnx.Div"(%x, %y) : (!torch.vtensor<[4],ui8>, !torch.vtensor<[4],ui8>) -> !torch.vtensor<[4],ui8>
    %r = torch.operator "onnx.Mod"(%x, %y) : (!torch.vtensor<[4],ui8>, !torch.vtensor<[4],ui8>) -> !torch.vtensor<[4],ui8>
    return %q, %r : !torch.vtensor<[4],ui8>, !torch.vtensor<[4],ui8>
  }
}
