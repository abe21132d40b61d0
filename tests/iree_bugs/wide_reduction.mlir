// For CUDA: a sum of 64 bits along the last axis of numbers that have fewer, as true ones are counted: "'func.func' op failed to
// distribute".
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,?],i1>) -> !torch.vtensor<[?,1],si64> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %1 = torch.operator "onnx.Cast"(%arg0) {torch.onnx.to = 7 : si64} : (!torch.vtensor<[?,?],i1>) -> !torch.vtensor<[?,?],si64>
    %2 = torch.operator "onnx.ReduceSum"(%1, %0) : (!torch.vtensor<[?,?],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[?,1],si64>
    return %2 : !torch.vtensor<[?,1],si64>
  }
}
