// An onnx.Slice whose starts and ends are scalars ends the compiler by a segmentation fault, without an error. The importer
// makes such ones inside a Loop, where it takes every value without a known shape for a scalar.
func.func @main_graph(%x: !torch.vtensor<[1,64],f32>, %start: !torch.vtensor<[],si64>, %end: !torch.vtensor<[],si64>, %axis: !torch.vtensor<[1],si64>) -> !torch.vtensor<[?,?],f32> attributes {torch.onnx_meta.ir_version = 9 : si64, torch.onnx_meta.opset_version = 18 : si64} {
  %0 = torch.operator "onnx.Slice"(%x, %start, %end, %axis) : (!torch.vtensor<[1,64],f32>, !torch.vtensor<[],si64>, !torch.vtensor<[],si64>, !torch.vtensor<[1],si64>) -> !torch.vtensor<[?,?],f32>
  return %0 : !torch.vtensor<[?,?],f32>
}
