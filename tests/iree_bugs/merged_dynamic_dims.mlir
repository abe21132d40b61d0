// A Reshape that merges two dynamic dims takes the second for 1: with 2x3x4x32 it stops with "tensor shape dimension 1 mismatch;
// expected 1 but have 3" (inside a larger model, without a message and with wrong numbers).
module {
  func.func @main_graph(%arg0: !torch.vtensor<[?,?,4,32],f32>) -> !torch.vtensor<[?,128],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64, torch.onnx_meta.producer_name = "", torch.onnx_meta.producer_version = ""} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value = dense_resource<s> : tensor<2xsi64>} : () -> !torch.vtensor<[2],si64> 
    %none = torch.constant.none
    %1 = torch.operator "onnx.Reshape"(%arg0, %0) : (!torch.vtensor<[?,?,4,32],f32>, !torch.vtensor<[2],si64>) -> !torch.vtensor<[?,128],f32> 
    return %1 : !torch.vtensor<[?,128],f32>
  }
}

{-#
  dialect_resources: {
    builtin: {
      s: "0x08000000FFFFFFFFFFFFFFFF8000000000000000"
    }
  }
#-}
