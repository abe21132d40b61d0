// Silently: two free dims of one axis are taken to be of one size. Of two batches beside one the second is wrong, or lost.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,4],f32>, %arg1: !torch.vtensor<[?,4],f32>, %arg2: !torch.vtensor<[?,2,4],f32>, %arg3: !torch.vtensor<[?,4,2],f32>) -> (!torch.vtensor<[?,4],f32>, !torch.vtensor<[?,2,2],f32>) attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Add"(%arg0, %arg1) : (!torch.vtensor<[?,4],f32>, !torch.vtensor<[?,4],f32>) -> !torch.vtensor<[?,4],f32>
    %1 = torch.operator "onnx.MatMul"(%arg2, %arg3) : (!torch.vtensor<[?,2,4],f32>, !torch.vtensor<[?,4,2],f32>) -> !torch.vtensor<[?,2,2],f32>
    return %0, %1 : !torch.vtensor<[?,4],f32>, !torch.vtensor<[?,2,2],f32>
  }
}
