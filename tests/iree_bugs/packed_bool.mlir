// With --iree-opt-data-tiling a boolean tensor that is read elementwise behind a matmul is packed as i1 and stored as i8:
// "'linalg.pack' op expected padding_value has 'i8' but got: 'i1'".
module {
  func.func @main_graph(%arg0: !torch.vtensor<[65,33],f32>, %arg1: !torch.vtensor<[33,70],f32>, %arg2: !torch.vtensor<[65,70],i1>) -> !torch.vtensor<[65,70],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<z> : tensor<f32>} : () -> !torch.vtensor<[],f32> 
    %none = torch.constant.none
    %1 = torch.operator "onnx.MatMul"(%arg0, %arg1) : (!torch.vtensor<[65,33],f32>, !torch.vtensor<[33,70],f32>) -> !torch.vtensor<[65,70],f32> 
    %2 = torch.operator "onnx.Where"(%arg2, %1, %0) : (!torch.vtensor<[65,70],i1>, !torch.vtensor<[65,70],f32>, !torch.vtensor<[],f32>) -> !torch.vtensor<[65,70],f32> 
    return %2 : !torch.vtensor<[65,70],f32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      z: "0x0800000000000000"
    }
  }
#-}
