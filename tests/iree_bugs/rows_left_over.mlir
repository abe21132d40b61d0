// One window of 2x2 on 3x3 and a free batch: the rows that it leaves over are read as the window's, silently. With a static batch refused.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,1,3,3],f32>) -> !torch.vtensor<[?,1,1,1],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %none = torch.constant.none
    %0 = torch.operator "onnx.MaxPool"(%arg0) {torch.onnx.kernel_shape = [2 : si64, 2 : si64], torch.onnx.strides = [2 : si64, 2 : si64]} : (!torch.vtensor<[?,1,3,3],f32>) -> !torch.vtensor<[?,1,1,1],f32> 
    return %0 : !torch.vtensor<[?,1,1,1],f32>
  }
}

