#include "kernels/cpu/layers/cpu_mamba_ops.h"

#include "common/status_macros.h"
#include "kernels/cpu/layers/document_check.h"

namespace nibble {

absl::Status CpuMambaOps::Forward(const ConvForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocumentStarts("convolution", request.layout));
  if (request.in.rows == 0 || request.in.cols == 0) return absl::OkStatus();
  if (request.layout.continued.empty()) {
    conv_.Forward(request);
  } else {
    recurrence_.Run(request);
  }
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Backward(const ConvBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocumentStarts("convolution backward", request.layout));
  if (request.in.rows == 0 || request.in.cols == 0) return absl::OkStatus();
  conv_.Backward(request);
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Forward(const ScanForward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocumentStarts("scan", request.layout));
  if (request.xbc.rows == 0) return absl::OkStatus();
  if (!request.layout.continued.empty()) {
    recurrence_.Run(request);
  } else if (request.xbc.dtype == DType::kBf16) {
    scan_bf16_.Run(request);
  } else {
    scan_fp32_.Run(request);
  }
  return absl::OkStatus();
}

absl::Status CpuMambaOps::Backward(const ScanBackward& request) {
  NIBBLE_RETURN_IF_ERROR(Validate(request));
  NIBBLE_RETURN_IF_ERROR(cpu::CheckDocumentStarts("scan backward", request.layout));
  if (request.xbc.rows == 0) return absl::OkStatus();
  if (request.xbc.dtype == DType::kBf16) {
    scan_bf16_.Run(request);
  } else {
    scan_fp32_.Run(request);
  }
  return absl::OkStatus();
}

}  // namespace nibble
