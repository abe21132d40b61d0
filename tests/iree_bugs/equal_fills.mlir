// Rows of ones at place 0 of zeros, and at place 1 of the same zeros; places of what is above 0, and of what is below.
module {
  func.func @main(%x: !torch.vtensor<[?,4],f32>, %i: !torch.vtensor<[1,1],si64>, %j: !torch.vtensor<[1,1],si64>, %u: !torch.vtensor<[1,4],f32>) -> (!torch.vtensor<[?,4],f32>, !torch.vtensor<[?,4],f32>, !torch.vtensor<[2,?],si64>, !torch.vtensor<[2,?],si64>) attributes {torch.onnx_meta.opset_version = 17 : si64, torch.onnx_meta.ir_version = 9 : si64} {
    %size = torch.operator "onnx.Shape"(%x) : (!torch.vtensor<[?,4],f32>) -> !torch.vtensor<[2],si64>
    %zeros = torch.operator "onnx.ConstantOfShape"(%size) : (!torch.vtensor<[2],si64>) -> !torch.vtensor<[?,4],f32>
    %a = torch.operator "onnx.ScatterND"(%zeros, %i, %u) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[1,1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[?,4],f32>
    %b = torch.operator "onnx.ScatterND"(%zeros, %j, %u) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[1,1],si64>, !torch.vtensor<[1,4],f32>) -> !torch.vtensor<[?,4],f32>
    %zero = torch.operator "onnx.Constant"() {torch.onnx.value = dense<0.0> : tensor<f32>} : () -> !torch.vtensor<[],f32>
    %more = torch.operator "onnx.Greater"(%x, %zero) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[?,4],i1>
    %less = torch.operator "onnx.Less"(%x, %zero) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[?,4],i1>
    %c = torch.operator "onnx.NonZero"(%more) : (!torch.vtensor<[?,4],i1>) -> !torch.vtensor<[2,?],si64>
    %d = torch.operator "onnx.NonZero"(%less) : (!torch.vtensor<[?,4],i1>) -> !torch.vtensor<[2,?],si64>
    return %a, %b, %c, %d : !torch.vtensor<[?,4],f32>, !torch.vtensor<[?,4],f32>, !torch.vtensor<[2,?],si64>, !torch.vtensor<[2,?],si64>
  }
}
