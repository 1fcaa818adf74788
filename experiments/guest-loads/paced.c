// open loop: Poisson arrivals at RATE/s to a redis on a unix socket; prints ops/s, p50 and p99 [us] since the scheduled arrival
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <math.h>
#include <time.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/un.h>
static long now(){struct timespec t;clock_gettime(CLOCK_MONOTONIC,&t);return t.tv_sec*1000000000L+t.tv_nsec;}
static int cmp(const void*a,const void*b){long x=*(long*)a,y=*(long*)b;return x<y?-1:x>y;}
int main(int n,char**v){double sec=atof(v[1]),rate=atof(v[2]);cpu_set_t s;CPU_ZERO(&s);CPU_SET(0,&s);if(n<5)sched_setaffinity(0,sizeof s,&s);
 int f=socket(AF_UNIX,SOCK_STREAM,0);struct sockaddr_un a={.sun_family=AF_UNIX};strcpy(a.sun_path,v[3]);if(connect(f,(void*)&a,sizeof a)){perror("connect");return 1;}
 srand48(7);long cap=2*(sec<600?sec:600)*rate+1000,k=0,*l=malloc(cap*8);long t=now(),e=t+sec*1e9;char b[256];
 while(k<cap){t+=-log(1-drand48())/rate*1e9;if(t>e)break;long w=now();if(t>w){struct timespec q={t/1000000000L,t%1000000000L};clock_nanosleep(CLOCK_MONOTONIC,TIMER_ABSTIME,&q,0);}
  if(write(f,"GET x\r\n",7)!=7||read(f,b,256)<=0)return 2;l[k++]=now()-t;}
 double el=(now()-(e-sec*1e9))/1e9;qsort(l,k,8,cmp);printf("%.0f %.1f %.1f\n",k/el,l[k/2]/1e3,l[k*99/100]/1e3);}
