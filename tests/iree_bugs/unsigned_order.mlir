// Unsigned integers are compared with a bound or an update, sorted and negated as signed ones.
module {
  func.func @main(%x: !torch.vtensor<[3],ui8>, %low: !torch.vtensor<[],ui8>, %high: !torch.vtensor<[],ui8>, %first: !torch.vtensor<[1,1],si64>, %update: !torch.vtensor<[1],ui8>) -> (!torch.vtensor<[3],ui8>, !torch.vtensor<[3],ui8>, !torch.vtensor<[1],ui8>, !torch.vtensor<[3],ui8>) attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %one = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %clipped = torch.operator "onnx.Clip"(%x, %low, %high) : (!torch.vtensor<[3],ui8>, !torch.vtensor<[],ui8>, !torch.vtensor<[],ui8>) -> !torch.vtensor<[3],ui8>
    %absolute = torch.operator "onnx.Abs"(%x) : (!torch.vtensor<[3],ui8>) -> !torch.vtensor<[3],ui8>
    %most:2 = torch.operator "onnx.TopK"(%x, %one) {torch.onnx.axis = 0 : si64} : (!torch.vtensor<[3],ui8>, !torch.vtensor<[1],si64>) -> (!torch.vtensor<[1],ui8>, !torch.vtensor<[1],si64>)
    %least = torch.operator "onnx.ScatterND"(%x, %first, %update) {torch.onnx.reduction = "min"} : (!torch.vtensor<[3],ui8>, !torch.vtensor<[1,1],si64>, !torch.vtensor<[1],ui8>) -> !torch.vtensor<[3],ui8>
    return %clipped, %absolute, %most#0, %least : !torch.vtensor<[3],ui8>, !torch.vtensor<[3],ui8>, !torch.vtensor<[1],ui8>, !torch.vtensor<[3],ui8>
  }
}
