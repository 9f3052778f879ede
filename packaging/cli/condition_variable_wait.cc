// Replaces std::condition_variable::wait of libstdc++. GCC 12 gave this symbol a new version (GLIBCXX_3.4.30), which
// the libstdc++ of Red Hat 9 does not have. The linker option --wrap redirects the program's calls to this function.
#include <pthread.h>

#include <condition_variable>
#include <exception>
#include <mutex>

extern "C" void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* condition,
                                                                                 std::unique_lock<std::mutex>* lock) {
  if (pthread_cond_wait(condition->native_handle(), lock->mutex()->native_handle()) != 0) std::terminate();
}
