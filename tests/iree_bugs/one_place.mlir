// Silently: of a scatter's one place and its one number, both constants, the compiler makes both in one dispatch that reads nothing,
// makes that anew for each of them, and takes the first result for both: the bits of a 1 are written where 4 should be. And integers
// are negated as floats of 32 bits.
module {
  func.func @one_place(%arg0: !torch.vtensor<[4],f32>, %arg1: !torch.vtensor<[4],si64>) -> (!torch.vtensor<[4],f32>, !torch.vtensor<[4],si64>) attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<1> : tensor<1x1xsi64>} : () -> !torch.vtensor<[1,1],si64> 
    %1 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<4.0> : tensor<1xf32>} : () -> !torch.vtensor<[1],f32> 
    %2 = torch.operator "onnx.ScatterND"(%arg0, %0, %1) : (!torch.vtensor<[4],f32>, !torch.vtensor<[1,1],si64>, !torch.vtensor<[1],f32>) -> !torch.vtensor<[4],f32> 
    %3 = torch.operator "onnx.Neg"(%arg1) : (!torch.vtensor<[4],si64>) -> !torch.vtensor<[4],si64> 
    return %2, %3 : !torch.vtensor<[4],f32>, !torch.vtensor<[4],si64>
  }
}
