// onnx.Expand of a dim that is 1, but not statically so, stops when it runs: "onnx.Expand input has a dim that is not statically 1".
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,4],f32>, %arg1: !torch.vtensor<[2],si64>) -> !torch.vtensor<[?,4],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %none = torch.constant.none
    %0 = torch.operator "onnx.Expand"(%arg0, %arg1) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[?,4],f32> 
    return %0 : !torch.vtensor<[?,4],f32>
  }
}
