// Silently: the last place of equal numbers along a free axis is counted wrongly.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[2,?],f32>) -> !torch.vtensor<[2,1],si64> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.ArgMax"(%arg0) {torch.onnx.axis = 1 : si64, torch.onnx.keepdims = 1 : si64, torch.onnx.select_last_index = 1 : si64} : (!torch.vtensor<[2,?],f32>) -> !torch.vtensor<[2,1],si64>
    return %0 : !torch.vtensor<[2,1],si64>
  }
}
