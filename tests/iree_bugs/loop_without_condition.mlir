// A Loop whose first condition is left out is refused.
module {
  func.func @main(%n: !torch.vtensor<[],si64>, %x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> attributes {torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.ir_version = 8 : si64} {
    %none = torch.constant.none
    %y = torch.operator "onnx.Loop"(%n, %none, %x) : (!torch.vtensor<[],si64>, !torch.none, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
    ^bb0(%i: !torch.vtensor<[],si64>, %c: !torch.vtensor<[],i1>, %a: !torch.vtensor<[4],f32>):
      %b = torch.operator "onnx.Add"(%a, %a) : (!torch.vtensor<[4],f32>, !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32>
      torch.operator_terminator %c, %b : !torch.vtensor<[],i1>, !torch.vtensor<[4],f32>
    }
    return %y : !torch.vtensor<[4],f32>
  }
}
