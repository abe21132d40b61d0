// onnx.ReduceMean of f16 adds up in f16: of numbers whose sum f16 has not it is infinite, silently.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[2,768],f32>) -> !torch.vtensor<[2,1],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %none = torch.constant.none
    %0 = torch.operator "onnx.Cast"(%arg0) {torch.onnx.to = 10 : si64} : (!torch.vtensor<[2,768],f32>) -> !torch.vtensor<[2,768],f16> 
    %1 = torch.operator "onnx.ReduceMean"(%0) {torch.onnx.axes = [-1 : si64]} : (!torch.vtensor<[2,768],f16>) -> !torch.vtensor<[2,1],f16> 
    %2 = torch.operator "onnx.Cast"(%1) {torch.onnx.to = 1 : si64} : (!torch.vtensor<[2,1],f16>) -> !torch.vtensor<[2,1],f32> 
    return %2 : !torch.vtensor<[2,1],f32>
  }
}
