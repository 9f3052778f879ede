// device.sh links no CPU kernels; case.cc names them.
#include <stdexcept>

#include "lazy/attention.h"

namespace lazy::kernels {

void forward(const Problem&, const Forward<float>&) { throw std::logic_error("this build has no CPU kernels"); }
void backward(const Problem&, const Backward<float>&) { throw std::logic_error("this build has no CPU kernels"); }

}  // namespace lazy::kernels
