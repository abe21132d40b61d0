// For CUDA: the least of 32-bit integers along an axis of free size is compared with -1 where a tile reaches beyond the axis.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,?],si32>) -> !torch.vtensor<[1,?],si32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0> : tensor<1xsi64>} : () -> !torch.vtensor<[1],si64>
    %1 = torch.operator "onnx.ReduceMin"(%arg0, %0) : (!torch.vtensor<[?,?],si32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[1,?],si32>
    return %1 : !torch.vtensor<[1,?],si32>
  }
}
