// onnx.InstanceNormalization divides the sum of squares by -1, which stands for a free size: NaN, or with two free sizes another number.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[1,2,?],f32>) -> !torch.vtensor<[1,2,?],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1.000000e+00> : tensor<2xf32>} : () -> !torch.vtensor<[2],f32> 
    %1 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0.000000e+00> : tensor<2xf32>} : () -> !torch.vtensor<[2],f32> 
    %none = torch.constant.none
    %2 = torch.operator "onnx.InstanceNormalization"(%arg0, %0, %1) {torch.onnx.epsilon = 9.99999974E-6 : f32} : (!torch.vtensor<[1,2,?],f32>, !torch.vtensor<[2],f32>, !torch.vtensor<[2],f32>) -> !torch.vtensor<[1,2,?],f32> 
    return %2 : !torch.vtensor<[1,2,?],f32>
  }
}
