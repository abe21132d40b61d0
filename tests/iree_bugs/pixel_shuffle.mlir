// onnx.DepthToSpace of mode "CRD" (a pixel shuffle) is computed wrongly, silently, for most sizes.
module {
  func.func @main_graph(%arg0: !torch.vtensor<[1,12,2,2],f32>) -> !torch.vtensor<[1,3,4,4],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %none = torch.constant.none
    %0 = torch.operator "onnx.DepthToSpace"(%arg0) {torch.onnx.blocksize = 2 : si64, torch.onnx.mode = "CRD"} : (!torch.vtensor<[1,12,2,2],f32>) -> !torch.vtensor<[1,3,4,4],f32> 
    return %0 : !torch.vtensor<[1,3,4,4],f32>
  }
}

