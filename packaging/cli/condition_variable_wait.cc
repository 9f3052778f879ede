// std::condition_variable::wait without libstdc++'s symbol, which GCC 12 gave a new version (GLIBCXX_3.4.30) that the
// libstdc++ of Red Hat 9 lacks. The linker's --wrap sends the program's calls here.
#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                                 std::unique_lock<std::mutex>* lock) {
  if (pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle()) != 0) std::terminate();
}
