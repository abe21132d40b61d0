// What a loop begins with, of a size that only a run knows, and another value that the loop reads are computed together and get one
// allocation. The loop is told where that begins, not where in there its own value lies: it begins with the other one's numbers,
// silently.
module {
  func.func @loop_start(%arg0: !torch.vtensor<[?,4,?],f32>) -> !torch.vtensor<[?,?],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 21 : si64} {
    %0 = torch.operator "onnx.Constant"() {torch.onnx.value_ints = [1 : si64]} : () -> !torch.vtensor<[1],si64> 
    %1 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<true> : tensor<i1>} : () -> !torch.vtensor<[],i1> 
    %2 = torch.operator "onnx.Constant"() {torch.onnx.value_int = 4 : si64} : () -> !torch.vtensor<[],si64> 
    %3 = torch.operator "onnx.Neg"(%arg0) : (!torch.vtensor<[?,4,?],f32>) -> !torch.vtensor<[?,4,?],f32> 
    %4 = torch.operator "onnx.ReduceMax"(%3, %0) {torch.onnx.keepdims = 0 : si64} : (!torch.vtensor<[?,4,?],f32>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[?,?],f32> 
    %5 = torch.operator "onnx.Loop"(%2, %1, %4) : (!torch.vtensor<[],si64>, !torch.vtensor<[],i1>, !torch.vtensor<[?,?],f32>) -> !torch.vtensor<[?,?],f32> {
    ^bb0(%arg1: !torch.vtensor<[],si64>, %arg2: !torch.vtensor<[],i1>, %arg3: !torch.vtensor<[?,?],f32>):
      %7 = torch.operator "onnx.Identity"(%arg2) : (!torch.vtensor<[],i1>) -> !torch.vtensor<[],i1> 
      %8 = torch.operator "onnx.Gather"(%3, %arg1) {torch.onnx.axis = 1 : si64} : (!torch.vtensor<[?,4,?],f32>, !torch.vtensor<[],si64>) -> !torch.vtensor<[?,?],f32> 
      %9 = torch.operator "onnx.Add"(%arg3, %8) : (!torch.vtensor<[?,?],f32>, !torch.vtensor<[?,?],f32>) -> !torch.vtensor<[?,?],f32> 
      torch.operator_terminator %7, %9 : !torch.vtensor<[],i1>, !torch.vtensor<[?,?],f32>
    }
    %6 = torch.operator "onnx.Neg"(%5) : (!torch.vtensor<[?,?],f32>) -> !torch.vtensor<[?,?],f32> 
    return %6 : !torch.vtensor<[?,?],f32>
  }
}

