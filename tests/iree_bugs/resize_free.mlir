// onnx.Resize of mode "nearest" over free sizes in front of a convolution: "failed to resolve workgroup count hint in terms of workload ordinals".
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,2,?,?],f32>, %arg1: !torch.vtensor<[2,2,3,3],f32>) -> !torch.vtensor<[?,2,?,?],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<[1.000000e+00, 1.000000e+00, 2.000000e+00, 2.000000e+00]> : tensor<4xf32>} : () -> !torch.vtensor<[4],f32> 
    %none = torch.constant.none
    %1 = torch.operator "onnx.Resize"(%arg0, %none, %0) {torch.onnx.coordinate_transformation_mode = "asymmetric", torch.onnx.mode = "nearest", torch.onnx.nearest_mode = "floor"} : (!torch.vtensor<[?,2,?,?],f32>, !torch.none, !torch.vtensor<[4],f32>) -> !torch.vtensor<[?,2,?,?],f32> 
    %2 = torch.operator "onnx.Conv"(%1, %arg1) {torch.onnx.pads = [1 : si64, 1 : si64, 1 : si64, 1 : si64]} : (!torch.vtensor<[?,2,?,?],f32>, !torch.vtensor<[2,2,3,3],f32>) -> !torch.vtensor<[?,2,?,?],f32> 
    return %2 : !torch.vtensor<[?,2,?,?],f32>
  }
}

